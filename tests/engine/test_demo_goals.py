"""What the engine is for, on the demo model: turns not computed again, drafts that are right, fair streams."""

import statistics
import time

import pytest
import torch

from day0.demo import model_path
from day0.engine.drafting import PromptLookup
from day0.engine.engine import Engine
from day0.engine.memory.store import Store, pages_of
from day0.engine.request import Request, Sampling
from day0.engine.threads import threads_for
from day0.repo import ModelRepo
from tests.align.packages import package_of

pytestmark = pytest.mark.verify

TURNS = (
    "def add(a, b):\n    return a + b\n\n\ndef",
    " multiply",
    "\n\nclass Point:",
    " # next",
    "\n\nimport",
    "\n\ndef read(path):",
    " The result is",
    "\n\n# Tests",
)
CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    repo = ModelRepo.open(model_path())
    package = package_of(repo, tmp_path_factory.mktemp("demo"), dtype=torch.float32)
    with threads_for(sum(p.numel() for p in package.parameters())):
        yield package, repo.tokenizer


def engine_of(package, *, drafts=0, running=4):
    store = Store(package.layout(), pages=pages_of(8192) + 1, slots=1 + 2 * running + 64, dtype=torch.float32)
    drafter = PromptLookup() if drafts else None
    return Engine(package, store, max_running=running, step_tokens=2048, drafter=drafter, draft_tokens=drafts)


@pytest.mark.parametrize("drafts", [0, 4])
def test_turns_of_a_conversation_are_not_computed_again(demo, drafts):
    """8 turns of 160 tokens: at most a tenth of what was seen before is computed again."""
    package, tokenizer = demo
    engine = engine_of(package, drafts=drafts)
    seen: list[int] = []
    before = again = 0
    for turn in TURNS:
        request = Request((*seen, *tokenizer.encode(turn)), Sampling(max_tokens=160))
        engine.run([request])
        assert request.finished == "length" and len(request.output) == 160
        before += len(seen)
        again += max(0, len(seen) - request.reused)
        seen = request.tokens
    assert before > 4000 and again <= before / 10


def test_prompt_lookup_on_code_gives_the_same_text_in_fewer_steps(demo):
    package, tokenizer = demo
    outputs = []
    for drafts in (0, 4):
        engine = engine_of(package, drafts=drafts)
        request = Request(tuple(tokenizer.encode(CODE)), Sampling(max_tokens=256))
        engine.run([request])
        outputs.append((request.output, len(request.output) / engine.counts.steps))
    assert outputs[0][0] == outputs[1][0]
    assert outputs[1][1] >= 1.5, f"{outputs[1][1]:.2f} tokens a step"


def test_sixteen_streams_advance_alike(demo):
    """The slowest of 16 streams has at least half the median's rate."""
    package, tokenizer = demo
    engine = engine_of(package, running=16)
    prompt = tokenizer.encode(CODE)
    requests = [
        Request(tuple(prompt[: 10 + 3 * i]), Sampling(max_tokens=64, seed=i, temperature=0.7)) for i in range(16)
    ]
    for request in requests:
        engine.add(request)
    start, rates = time.perf_counter(), {}
    while not engine.idle:
        engine.step()
        for request in requests:
            if request.finished and request.number not in rates:
                rates[request.number] = len(request.output) / (time.perf_counter() - start)
    assert len(rates) == 16 and min(rates.values()) >= 0.5 * statistics.median(rates.values())
