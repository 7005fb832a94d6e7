"""day0 serve, as a process: it answers as `day0 sample` does, and ends well when it is told to."""

import json
import signal
import subprocess
import sys
from dataclasses import replace

import openai
import pytest
import torch

from day0.cli.serve import _is_loopback
from day0.engine.request import Request, Sampling
from day0.errors import Day0Error
from day0.pipeline import sample
from day0.pipeline.serving import load_package_to_serve
from day0.serve.load import MemorySize, known_answer
from day0.serve.server import listen
from tests.cli.run_day0 import START, day0
from tests.demo_line import demo_line
from tests.serve.spelling import VOCAB, SpellingModel, byte_tokenizer

PROMPT = "def add(a, b):"
KEY = "a-key-for-the-test"


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    return demo_line(tmp_path_factory.mktemp("serve") / "demo.day0")


def test_it_answers_as_sample_does_and_finishes_when_told_to_end(line, tmp_path):
    (tmp_path / "keys").write_text(f"{KEY}\n")
    options = "--port 0 --api-key-file keys --draft-tokens 3 --max-running 3 --memory-tokens 4096 --json".split()
    process = subprocess.Popen(
        [sys.executable, "-c", START, "serve", "-w", line.workspace.folder, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        expected = sample(line, line.repo.tokenizer.encode(PROMPT), max_tokens=24)  # while it starts
        document = ""
        while not document.endswith("}\n"):
            document += process.stdout.readline()
        url = json.loads(document)["url"]
        assert url.startswith("http://127.0.0.1:")
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60)
        stream = client.completions.create(model="demo", prompt=PROMPT, max_tokens=24, temperature=0, stream=True)
        text = next(stream).choices[0].text
        process.send_signal(signal.SIGTERM)
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == expected.text
        assert process.wait(60) == 0
        logs = process.stderr.read()
        assert KEY not in logs and PROMPT not in logs
        (request,) = [entry for entry in logs.splitlines() if '"completion_tokens": 24' in entry]
        assert len(json.loads(request)["request_id"]) == 32
        assert "Traceback" not in logs
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_what_is_loaded_is_what_was_asked_for(line):
    size = MemorySize(max_running=3, tokens=1000, checkpoints=5, draft_tokens=2)
    loaded = load_package_to_serve(line, name="mine", dtype="float64", size=size, device="cpu")
    served = loaded.served
    store = served.engine.store
    assert (served.name, served.stop_ids, served.max_running) == ("mine", (0, 1), 3)
    # A page and a slot for padding; for each sequence a second slot, where its state waits while drafts are verified.
    assert (store.pages.count, store.slots.count) == (1 + 16, 1 + 2 * 3 + 5)
    sizes = {c.name: store.memory[c.name].nbytes for c in store.layout.components}
    budget = loaded.budget
    assert 17 * budget.page_bytes + 12 * budget.slot_bytes == sum(sizes.values()) and budget.slot_bytes > 0
    request = Request(served.known.prompt, Sampling(max_tokens=len(served.known.tokens)))
    repeating = Request(tuple(range(20, 40)) * 4, Sampling(max_tokens=10))
    served.engine.run([request, repeating])
    assert tuple(request.output) == served.known.tokens
    assert served.engine.counts.drafted > 0


def test_a_memory_that_holds_no_request_is_refused_and_a_small_one_cut(line):
    size = MemorySize(max_running=3, tokens=32_768, checkpoints=5, device_bytes=2**20)
    with pytest.raises(Day0Error, match="a request of .* tokens does not fit"):
        load_package_to_serve(line, name="mine", dtype="float32", size=size, device="cpu")
    whole = load_package_to_serve(
        line, name="mine", dtype="float32", size=replace(size, device_bytes=None), device="cpu"
    )
    less = replace(size, device_bytes=whole.budget.used - 1)
    cut = load_package_to_serve(line, name="mine", dtype="float32", size=less, device="cpu")
    assert cut.budget.pages < 512 == whole.budget.pages
    assert cut.served.engine.store.pages.count == cut.budget.store_pages


@pytest.mark.parametrize(("tied_after", "known"), [(0, 0), (3, 3), (99, 8)])
def test_an_answer_is_known_up_to_where_rounding_could_change_it(tied_after, known):
    class Tied(torch.nn.Module):
        """Answers 1, 2, 3, ...; from some step on another token is as good but for rounding."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.steps = 0

        def layout(self):
            return SpellingModel().layout

        def forward(self, batch, memory):
            logits = torch.zeros(len(batch.token_ids), VOCAB)
            logits[-1, self.steps + 1] = 9.0
            logits[-1, 100] = 9.0 - 1e-6 if self.steps >= tied_after else 0.0
            self.steps += 1
            return logits

    found = known_answer(Tied(), byte_tokenizer(), device="cpu")
    assert (found.tokens if found else ()) == tuple(range(1, known + 1))


def test_a_port_that_is_taken_is_said_before_the_weights_are_read(line, capsys):
    with listen("127.0.0.1", 0) as taken:
        ran = day0(capsys, "serve", "-w", line.workspace.folder, "--port", taken.getsockname()[1])
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == "hint: choose another --host or --port" and "cannot listen" in ran.err


def test_without_a_package_it_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = day0(capsys, "serve", "demo", "--port", 0)
    assert ran.code == 2 and "day0 decompose" in ran.err


@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)])
def test_whose_address_it_is(host, own):
    assert _is_loopback(host) == own
