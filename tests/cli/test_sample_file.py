"""day0 sample --prompts: a file goes through the engine, and each prompt gets what it gets alone."""

import json
import re

import pytest

from day0.engine.request import Sampling
from day0.errors import Day0Error
from day0.pipeline import read_prompts, sample, sample_batch
from day0.pipeline.prompts import Asked
from tests.cli.run_day0 import day0
from tests.demo_line import demo_line

LONG = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n" * 3
PROMPTS = ["def add(a, b):", LONG, "import os", LONG + "        self.items", "x = [1, 2", "def add(a, b):", "if"]


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    return demo_line(tmp_path_factory.mktemp("sample") / "demo.day0")


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_every_prompt_gets_in_order_what_the_runner_gives_it_alone(line, capsys, tmp_path):
    # Of different lengths, so that the first ones are not the first to end.
    asked = [{"prompt": prompt, "max_tokens": 24 - 3 * index} for index, prompt in enumerate(PROMPTS)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in asked))
    ran = day0(capsys, "sample", "-w", line.workspace.folder, "--prompts", file, "--max-running", 3, "--json")
    assert ran.code == 0
    made = json_lines(ran.out)
    assert [one["index"] for one in made] == list(range(len(PROMPTS)))
    for one, wanted in zip(made, asked, strict=True):
        ids = line.repo.tokenizer.encode(wanted["prompt"])
        alone = sample(line, ids, max_tokens=wanted["max_tokens"])
        assert one["prompt_ids"] == ids
        assert [token["id"] for token in one["tokens"]] == alone.ids and one["text"] == alone.text
        assert [token["logprob"] for token in one["tokens"]] == pytest.approx(alone.logprobs, abs=1e-4)
        assert one["finish_reason"] == ("length" if len(alone.ids) == wanted["max_tokens"] else "stop")


def test_a_plain_file_gives_a_line_for_each_of_its_lines(line, capsys, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("def add(a, b):\r\n{not json\x0c still one line\nclass A:")
    ran = day0(capsys, "sample", "-q", "-w", line.workspace.folder, "--prompts", file, "--max-tokens", 12)
    wanted = ["def add(a, b):", "{not json\x0c still one line", "class A:"]
    alone = [sample(line, line.repo.tokenizer.encode(text), max_tokens=12).text for text in wanted]
    assert any("\n" in text for text in alone)
    undone = [re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text) for text in ran.out.splitlines()]
    assert ran.code == 0 and undone == alone


def test_a_prompt_has_its_own_options(line, capsys, tmp_path):
    ids = line.repo.tokenizer.encode(PROMPTS[0])
    greedy = sample(line, ids, max_tokens=6).ids
    drawn = {"prompt_ids": ids, "max_tokens": 6, "temperature": 1.5}
    asked = [
        {"prompt_ids": ids, "max_tokens": 6},
        {"prompt_ids": ids, "max_tokens": 6, "stop_token_ids": [greedy[1]]},
        *({**drawn, "seed": seed} for seed in (1, 1, 2, 3, 4)),
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, asked)))
    made = json_lines(day0(capsys, "sample", "-w", line.workspace.folder, "--prompts", file, "--json").out)
    tokens = [[token["id"] for token in one["tokens"]] for one in made]
    assert tokens[0] == greedy and tokens[1] == greedy[: greedy.index(greedy[1]) + 1]
    assert tokens[2] == tokens[3] and len({tuple(t) for t in tokens[2:]}) > 1


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("p.txt", "", "holds no prompt"),
        ("p.txt", "one\n\nthree\n", "line 2: a step needs at least one token"),
        ("p.txt", b"\xff\n", "cannot read"),
        ("p.jsonl", '{"prompt": "a"}\nnone\n', "line 2: no JSON"),
        ("p.jsonl", "[" * 100_000, "line 1: no JSON"),
        ("p.jsonl", "[1]", "line 1: no JSON object"),
        ("p.jsonl", '{"prompt": "a", "temprature": 1}', "line 1: temprature: Extra inputs"),
        ("p.jsonl", '{"prompt": "a", "temperature": -1}', "line 1: temperature is -1"),
        ("p.jsonl", '{"prompt": "a", "max_tokens": 0}', "line 1: max_tokens is 0"),
        ("p.jsonl", '{"prompt": "a", "prompt_ids": [1]}', "line 1: give one of prompt and prompt_ids"),
        ("p.jsonl", '{"prompt_ids": [99999999]}', "line 1: token id 99999999 is outside the vocabulary"),
        ("p.jsonl", '{"prompt": "a", "max_tokens": 9999}', "line 1: 10000 tokens are asked for"),
    ],
)
def test_a_file_that_is_wrong_is_refused_before_the_weights_are_read(
    line, capsys, tmp_path, monkeypatch, name, content, what
):
    def never(*_, **__):
        raise AssertionError("the package was loaded first")

    monkeypatch.setattr("day0.engine.package.load_package", never)
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    ran = day0(capsys, "sample", "-q", "-w", line.workspace.folder, "--prompts", file)
    assert ran.code == 2 and ran.out == ""
    error, hint = ran.err.splitlines()[-2:]
    assert what in error and hint.startswith("hint: ")


def test_a_missing_file_and_two_kinds_of_prompt_are_refused(line, capsys, tmp_path):
    at = ("sample", "-w", line.workspace.folder)
    assert "cannot read" in day0(capsys, *at, "--prompts", tmp_path / "none.txt").err
    assert day0(capsys, *at, "--prompts", tmp_path / "none.txt", "--prompt", "a").code == 2


def test_one_that_fails_is_told_and_the_others_are_answered(line, capsys, tmp_path, monkeypatch):
    from day0.engine.engine import Engine

    logits = Engine._logits
    poisoned = tuple(line.repo.tokenizer.encode("import os"))

    def unsound(self, work, phase):
        rows = logits(self, work, phase)
        return tuple(
            row * float("nan") if sequence.request.prompt == poisoned else row
            for (sequence, *_), row in zip(work, rows, strict=True)
        )

    monkeypatch.setattr(Engine, "_logits", unsound)
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(["if", "import os", "x = [1, 2"]))
    ran = day0(capsys, "sample", "-w", line.workspace.folder, "--prompts", file, "--max-tokens", 4, "--json")
    made = json_lines(ran.out)
    assert ran.code == 2 and "1 of 3 prompts failed" in ran.err and f"{file} line 2: the model's logits" in ran.err
    assert [one["finish_reason"] for one in made] == ["length", "error", "length"]
    assert [len(one["tokens"]) for one in made] == [4, 0, 4]


def test_answers_come_as_soon_as_those_before_are_there(line, monkeypatch):
    from day0.engine.engine import Engine

    step, steps = Engine.step, []
    monkeypatch.setattr(Engine, "step", lambda self: (steps.append(self), step(self)))
    ids = tuple(line.repo.tokenizer.encode("if"))
    asked = [Asked(str(n), ids, Sampling(max_tokens=tokens, logprobs=0)) for n, tokens in enumerate((2, 200))]
    batch = sample_batch(line, asked, max_running=1)
    first = next(batch.samples)
    assert len(first.ids) == 2 and len(steps) < 5, "it waited for the long one"


def test_options_of_a_file_are_read_once(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "ignore_eos": true}\n{"prompt": "b", "max_tokens": 3, "stop_token_ids": [9]}')
    first, second = read_prompts(file, max_tokens=7, stop_ids=(0, 1), encode=lambda text: [ord(text)])
    assert (first.ids, first.sampling) == ((97,), Sampling(max_tokens=7, logprobs=0))
    assert (second.ids, second.sampling) == ((98,), Sampling(max_tokens=3, logprobs=0, stop_ids=frozenset({0, 1, 9})))
    with pytest.raises(Day0Error, match="no regular file"):
        read_prompts(tmp_path, max_tokens=7, stop_ids=(), encode=lambda text: [])
