"""day0 serve, as a process: it answers as `day0 sample` does, and ends well when it is told to."""

import json
import signal
import subprocess
import sys

import openai
import pytest

from day0.cli.serve import _is_loopback
from day0.pipeline import RunOptions, open_line, sample
from day0.serve.server import listen
from tests.cli.run_day0 import START, day0
from tests.mapping.inventories import inventory_of_config

PROMPT = "def add(a, b):"
KEY = "a-key-for-the-test"


@pytest.fixture
def line(tmp_path, monkeypatch, capsys):
    """The demo's line in ./demo.day0 with a package, its inventory declared so that no reference has to run."""
    monkeypatch.chdir(tmp_path)
    made = open_line("demo", RunOptions())
    made.workspace.claim()
    held = inventory_of_config(made.repo.config, recipe=made.repo.config["model_type"])
    held.model_copy(update={"produced_by": made.expected("decompose"), "model": "demo"}).write(made.workspace.folder)
    assert day0(capsys, "map", "demo").code == day0(capsys, "generate", "demo").code == 0
    return made


def test_it_answers_as_sample_does_and_finishes_when_told_to_end(line, tmp_path):
    (tmp_path / "keys").write_text(f"{KEY}\n")
    options = "--port 0 --api-key-file keys --draft-tokens 3 --max-running 3 --memory-tokens 4096 --json".split()
    process = subprocess.Popen(
        [sys.executable, "-c", START, "serve", "demo", *options],
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
        assert '"completion_tokens": 24' in logs and "Traceback" not in logs
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_a_port_that_is_taken_is_said_before_the_weights_are_read(line, capsys):
    with listen("127.0.0.1", 0) as taken:
        ran = day0(capsys, "serve", "demo", "--port", taken.getsockname()[1])
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == "hint: choose another --host or --port" and "cannot listen" in ran.err


def test_without_a_package_it_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = day0(capsys, "serve", "demo", "--port", 0)
    assert ran.code == 2 and "day0 decompose" in ran.err


@pytest.mark.parametrize(("host", "own"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)])
def test_whose_address_it_is(host, own):
    assert _is_loopback(host) == own
