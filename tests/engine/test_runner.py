"""The runner: places in memory, steps, and what it refuses."""

import pytest
import torch

from day0.artifacts.base import Provenance
from day0.engine.package import load_package
from day0.engine.runner import Runner
from day0.errors import Day0Error
from day0.generate.stage import Options, run
from day0.repo import ModelRepo
from tests.generate import toy


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runner")
    repo = ModelRepo.open(toy.write_repo(folder / "toy"))
    made = run(
        repo,
        toy.inventory(toy.write_recipe_file(folder)),
        toy.plan(),
        folder / "ws",
        Options(),
        Provenance(day0_version="0", model_hash="0"),
    )
    return load_package(made.folder, repo, dtype=torch.float64)


def test_packed_sequences_equal_each_alone(model):
    owned = {n: t.double() for n, t in toy.tensors().items()}
    prompts = [[1, 2, 3, 4, 5], [7], [9, 8, 7, 6, 5, 4, 3, 2, 1]]
    runner = Runner(model, sequences=3, tokens=64, poison=True)
    sequences = [runner.open() for _ in prompts]
    logits = runner.step(sequences, prompts)
    logits = torch.cat([logits, runner.step(sequences, [[3], [2, 1], [4]], "decode")])
    for i, (prompt, more) in enumerate(zip(prompts, [[3], [2, 1], [4]], strict=True)):
        want = toy.expected(prompt + more, owned)
        start = sum(len(p) for p in prompts[:i])
        assert (logits[start : start + len(prompt)] - want[: len(prompt)]).abs().max() < 1e-12
    assert [s.length for s in sequences] == [6, 3, 10]


def test_pages_of_a_sequence_are_its_own_and_out_of_order(model):
    runner = Runner(model, sequences=3, tokens=200)
    pages = [runner.open().pages for _ in range(3)]
    assert sorted(p for each in pages for p in each) == list(range(12))
    assert all(each != sorted(each) for each in pages)


def test_greedy_follows_the_best_logit_and_stops(model):
    owned = {n: t.double() for n, t in toy.tensors().items()}
    ids, want = [1, 2, 3], []
    for _ in range(6):
        want.append(int(toy.expected(ids + want, owned)[-1].argmax()))
    runner = Runner(model, sequences=1, tokens=64)
    out = runner.greedy(ids, count=6)
    assert out.ids == want
    last = toy.expected(ids + want[:-1], owned)[-1]
    assert out.logprobs[-1] == pytest.approx(float(last.log_softmax(-1).max()), abs=1e-12)
    best = last.topk(2).values
    assert out.margins[-1] == pytest.approx(float(best[0] - best[1]), abs=1e-12)
    assert runner.greedy(ids, count=6, stop=(want[2],)).ids == want[: want.index(want[2]) + 1]
    assert len(runner.free) == 1


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "at least one token"),
        ([toy.VOCAB], "outside the vocabulary of 32"),
        ([-1], "outside the vocabulary"),
        ([1] * 65, "65 tokens exceed the 64"),
    ],
)
def test_a_refused_prompt_frees_its_slot(model, ids, words):
    runner = Runner(model, sequences=1, tokens=64)
    with pytest.raises(Day0Error, match=words):
        runner.prefill(ids)
    assert len(runner.free) == 1


def test_positions_and_slots_are_bounded(model):
    runner = Runner(model, sequences=1, tokens=256)
    with pytest.raises(Day0Error, match="the model has 200 positions"):
        runner.prefill([1] * 201)
    runner = Runner(model, sequences=1, tokens=64)
    runner.open()
    with pytest.raises(Day0Error, match="all 1 sequences are in use"):
        runner.open()


def test_memory_beyond_the_models_positions_is_refused_before_it_is_allocated(model):
    with pytest.raises(Day0Error, match="100000000000 tokens are asked for, the model has 200 positions"):
        Runner(model, sequences=1, tokens=100_000_000_000)
