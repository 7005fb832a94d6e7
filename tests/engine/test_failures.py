"""What goes wrong in one request's own work ends that request; all others get the text they get alone."""

import pytest
import torch

import day0.engine.engine as engine_module
from day0.engine.drafting import Drafter
from day0.engine.engine import Engine
from day0.engine.memory.store import Store
from day0.engine.request import Request, Sampling
from day0.errors import Day0Error
from tests.engine.counting_model import VOCABULARY, CountingModel
from tests.engine.test_engine import LAYOUTS, STATEFUL, Right, alone, assert_nothing_is_held, engine, finish, prompt

ROWS = {
    "are not numbers": [0.0] * (VOCABULARY - 1) + [float("nan")],
    "hold infinity": [float("inf")] + [0.0] * (VOCABULARY - 1),
    "allow no token": [float("-inf")] * VOCABULARY,
}


class Spoiled(CountingModel):
    """Gives `row` after the token at `position` of the sequences that begin with `marked`."""

    def __init__(self, layout, marked: tuple[int, ...], position: int, row: list[float]) -> None:
        super().__init__(layout)
        self.marked, self.position, self.row = list(marked), position, row

    def _logits(self, batch, memory, s, position, state):
        seen = memory["keys"][batch.token_slots(s, 0, position + 1)].flatten().tolist()
        if position == self.position and seen[: len(self.marked)] == self.marked:
            return torch.tensor(self.row)
        return super()._logits(batch, memory, s, position, state)


def company() -> list[Request]:
    return [Request(prompt(70, i), Sampling(max_tokens=30, temperature=i / 2, seed=i)) for i in range(3)]


def run_beside(running: Engine, bad: Request, layout) -> None:
    """The bad request in the middle of others, to the end of all; they get what they get alone."""
    good = company()
    for request in (*good[:2], bad, good[2]):
        running.add(request)
    finish(running)
    assert [r.output for r in good] == [alone(layout, r) for r in good]
    assert_nothing_is_held(running)


@LAYOUTS
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("generated", [0, 1, 7])
@pytest.mark.parametrize("words", ROWS)
def test_logits_that_choose_nothing_end_their_request_after_what_it_had(layout, drafts, generated, words):
    bad = Request(prompt(70, 9), Sampling(max_tokens=30))
    text = alone(layout, bad)
    store = Store(layout, pages=60, slots=24, dtype=torch.float32, poison=True)
    model = Spoiled(layout, bad.prompt, len(bad.prompt) + generated - 1, ROWS[words])
    drafter = Right({bad.prompt: text}) if drafts else None
    run_beside(Engine(model, store, max_running=8, step_tokens=96, drafter=drafter), bad, layout)
    assert bad.finished == "error" and f"after {70 + generated} tokens {words}" in bad.error
    assert bad.output == text[:generated]


@LAYOUTS
def test_logits_after_a_draft_that_was_wrong_are_nobodys(layout):
    request = Request(prompt(70, 9), Sampling(max_tokens=30))
    text = alone(layout, request)
    wrong = [*text[:6], (text[6] + 1) % VOCABULARY, *text[7:]]
    store = Store(layout, pages=60, slots=24, dtype=torch.float32, poison=True)
    # Its prompt and six tokens as they are, then the wrong one: what comes after is spoiled.
    model = Spoiled(layout, (*request.prompt, *wrong[:7]), 70 + 6, ROWS["are not numbers"])
    running = Engine(model, store, max_running=1, step_tokens=96, drafter=Right({request.prompt: wrong}))
    running.run([request])
    assert request.finished == "length" and request.output == text
    assert running.counts.drafted > running.counts.accepted


@LAYOUTS
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("generated", [0, 1, 7])
def test_a_draw_that_raises_ends_its_request(layout, drafts, generated, monkeypatch):
    bad = Request(prompt(70, 9), Sampling(max_tokens=30))
    text = alone(layout, bad)
    draw = engine_module.draw

    def raising(logits, request, output):
        if request is bad and len(output) == generated:
            raise IndexError("made to fail")
        return draw(logits, request, output)

    monkeypatch.setattr(engine_module, "draw", raising)
    run_beside(engine(layout, drafter=Right({bad.prompt: text}) if drafts else None), bad, layout)
    assert (bad.finished, bad.output) == ("error", text[:generated])
    assert "no token could be drawn: IndexError: made to fail" in bad.error


def test_a_bias_of_a_token_that_is_none_is_refused():
    """On a GPU it would fail in the device, and that is everybody's."""
    for token in (VOCABULARY, -1):
        with pytest.raises(Day0Error, match=f"token id {token}, outside the vocabulary"):
            engine(STATEFUL).add(Request((1,), Sampling(logit_bias={token: 1.0})))


class Broken:
    """Drafts rightly for all but one request, for which it gives `proposal`, or raises it."""

    def __init__(self, right: Drafter, bad: Request, proposal, *, after: int = 3) -> None:
        self.right, self.bad, self.proposal, self.after = right, bad, proposal, after

    def propose(self, request, tokens, most):
        if request is self.bad and len(request.drawn) > self.after and self.proposal != "told":
            if isinstance(self.proposal, Exception):
                raise self.proposal
            return self.proposal
        return self.right.propose(request, tokens, most)

    def accepted(self, request, accepted, proposed):
        if request is self.bad and self.proposal == "told" and len(request.drawn) > self.after:
            raise KeyError("told")


@LAYOUTS
@pytest.mark.parametrize(
    "proposal,words",
    [
        ([VOCABULARY], r"proposed [11], at most 4 tokens below 11"),
        ([-1], "proposed [-1]"),
        ([1, 2, 3, 4, 5], "proposed [1, 2, 3, 4, 5]"),
        (["a"], "proposed ['a']"),
        ([1.5], "proposed [1.5]"),
        (None, "no draft could be made: TypeError"),
        (ZeroDivisionError("by zero"), "no draft could be made: ZeroDivisionError: by zero"),
        ("told", "the drafter failed: KeyError: 'told'"),
    ],
)
def test_a_drafter_that_fails_for_one_request_ends_that_one(layout, proposal, words):
    bad = Request(prompt(70, 9), Sampling(max_tokens=30))
    texts = {r.prompt: alone(layout, r) for r in (bad, *company())}
    run_beside(engine(layout, drafter=Broken(Right(texts), bad, proposal)), bad, layout)
    assert bad.finished == "error" and words in bad.error
    assert bad.output == texts[bad.prompt][: len(bad.output)] and len(bad.output) in range(4, 12)


@LAYOUTS
def test_a_failed_request_leaves_nothing_to_be_found_after_its_prompt(layout):
    """What it computed last is what is in doubt; its prompt was sound."""
    bad = Request(prompt(70, 9), Sampling(max_tokens=90))
    text = alone(layout, bad)
    store = Store(layout, pages=60, slots=24, dtype=torch.float32, poison=True)
    running = Engine(Spoiled(layout, bad.prompt, 70 + 80, ROWS["hold infinity"]), store, max_running=1, step_tokens=96)
    running.run([bad])
    assert bad.finished == "error"
    after = Request((*bad.prompt, *text[:80], 1, 2), Sampling(max_tokens=5))
    running.run([after])
    assert after.reused <= 70 and after.finished == "length"


@LAYOUTS
def test_a_drafter_that_fails_at_the_very_end_leaves_a_checkpoint_that_is_right(layout):
    """Its last drafts were all right, and the text is complete: 1 + 5 + 5 tokens."""
    bad = Request(prompt(70, 9), Sampling(max_tokens=11))
    text = alone(layout, bad)
    running = engine(layout, drafter=Broken(Right({bad.prompt: text}), bad, "told"))
    running.run([bad])
    assert (bad.finished, bad.output, running.counts.accepted) == ("length", text, 8)
    second = Request((*bad.prompt, *text, 1, 2), Sampling(max_tokens=20))
    running.run([second])
    assert second.reused > 70 - 70 % 64 and second.output == alone(layout, second)
