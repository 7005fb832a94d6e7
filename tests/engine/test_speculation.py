"""Drafting stops where it costs more than it gives, and is tried again; times are a clock's that the test turns."""

import pytest
import torch

from day0.engine.counts import Counts
from day0.engine.engine import Engine
from day0.engine.memory.store import Store
from day0.engine.request import Request, Sampling
from day0.engine.speculation import BASELINE, LONGEST_PAUSE, SHORTEST_PAUSE, WINDOW, Speculation
from tests.engine.counting_model import VOCABULARY, CountingModel
from tests.engine.test_engine import LAYOUTS, Right, Scripted, alone, prompt


def window(judge: Speculation, *, gain: float, sequences: int = 1) -> int:
    """One window of steps with drafts whose rate is `gain` times that without; how many steps without came first."""
    plain = 0
    while not judge.drafts(sequences):
        judge.decoded(sequences, 1.0)
        plain += 1
    for _ in range(WINDOW):
        assert judge.drafts(sequences)
        judge.verified(sequences, 3 * sequences, 3 / gain)
    return plain


def test_pauses_double_while_drafts_lose_and_start_over_when_they_gain():
    judge = Speculation()
    gains = [0.5] * 9 + [2.0, 2.0, 0.5, 0.5]
    pauses = [window(judge, gain=gain) for gain in gains]
    doubled = [min(SHORTEST_PAUSE << i, LONGEST_PAUSE) for i in range(9)]
    assert doubled[-3:] == [LONGEST_PAUSE] * 3
    assert pauses == [BASELINE, *doubled, BASELINE, BASELINE, SHORTEST_PAUSE]
    assert judge.pauses == 11


@pytest.mark.parametrize("gain,pauses", [(1 - 2**-20, 1), (1.0, 0), (1 + 2**-20, 0)])
def test_a_gain_of_one_is_the_bound(gain, pauses):
    judge = Speculation()
    window(judge, gain=gain)
    assert judge.gain(1) == pytest.approx(gain, rel=1e-12) and judge.pauses == pauses


def test_steps_of_other_sizes_are_judged_apart():
    judge = Speculation()
    window(judge, gain=0.5, sequences=8)
    assert not judge.drafts(8) and not judge.drafts(5)
    assert judge.gain(4) is None
    window(judge, gain=2.0, sequences=4)
    assert (judge.gain(3), judge.gain(7)) == (pytest.approx(2.0), pytest.approx(0.5))


def test_the_mean_forgets_what_steps_took_long_ago():
    """Ever longer contexts: the rate without drafts is the recent one."""
    judge = Speculation()
    for seconds in [1.0] * 500 + [4.0] * 500:
        judge.decoded(1, seconds)
    for _ in range(WINDOW):
        judge.verified(1, 3, 6.0)
    assert judge.gain(1) == pytest.approx(3 / 6.0 * 4.0, rel=3 * (1 - 1 / WINDOW) ** 500 + 1e-12)


def test_a_slow_first_step_counts_in_its_window_only():
    judge = Speculation()
    window(judge, gain=2.0)
    judge = Speculation()
    for _ in range(BASELINE):
        judge.decoded(1, 1.0)
    judge.verified(1, 3, 1000.0)  # a graph was captured
    for _ in range(WINDOW - 1):
        judge.verified(1, 3, 1.5)
    assert not judge.drafts(1)
    assert window(judge, gain=2.0) == SHORTEST_PAUSE and judge.gain(1) == pytest.approx(2.0)


def test_a_clock_that_does_not_move_says_nothing():
    judge = Speculation()
    for _ in range(BASELINE):
        judge.decoded(1, 0.0)
    for _ in range(WINDOW):
        judge.verified(1, 3, 0.0)
    assert (judge.gain(1), judge.pauses) == (1.0, 0)


class Timed(CountingModel):
    """Takes 1 s for a decode step, `verify_s` for one with drafts, an hour for a prompt."""

    def __init__(self, layout, verify_s: float) -> None:
        super().__init__(layout)
        self.now = 0.0
        self.seconds = {"decode": 1.0, "verify": verify_s, "prefill": 3600.0}

    def __call__(self, batch, memory):
        self.now += self.seconds[batch.phase]
        return super().__call__(batch, memory)


def timed_engine(layout, verify_s: float, drafter) -> tuple[Timed, Speculation, Engine]:
    """One sequence at a time; `verify_s`: seconds of a verify step, in those of a decode step."""
    model, judge = Timed(layout, verify_s), Speculation()
    store = Store(layout, pages=40, slots=8, dtype=torch.float32, poison=True)
    running = Engine(
        model,
        store,
        max_running=1,
        step_tokens=96,
        drafter=drafter,
        speculation=judge,
        clock=lambda: model.now,
    )
    return model, judge, running


@LAYOUTS
@pytest.mark.parametrize("verify_s,pauses", [(4.0, 0), (6.0, 1)])
def test_an_engine_pauses_where_five_tokens_take_longer_than_five_steps(layout, verify_s, pauses):
    request = Request(prompt(70), Sampling(max_tokens=300))
    text = alone(layout, request)
    model, judge, running = timed_engine(layout, verify_s, Right({request.prompt: text}))
    running.add(Request(prompt(150, 1), Sampling(max_tokens=1)))  # prompts have no part in the times
    running.add(request)
    while not running.idle:
        running.step()
    assert request.output == text
    assert judge.gain(1) == pytest.approx(5 / verify_s)
    assert running.counts.pauses == judge.pauses == pauses
    phases = [phase for phase, _, _ in model.steps if phase != "prefill"]
    without = SHORTEST_PAUSE if pauses else BASELINE
    expected = ["decode"] * BASELINE + ["verify"] * WINDOW + ["decode"] * without + ["verify"] * 10
    assert phases[: len(expected)] == expected


@LAYOUTS
def test_replays_after_the_last_drafts_are_no_measure_of_steps_without(layout):
    """Half of the drafts are wrong, so a pause begins with known tokens that are not in memory."""
    request = Request(prompt(70), Sampling(max_tokens=300))
    text = alone(layout, request)
    _, judge, running = timed_engine(layout, 6.0, Scripted({request.prompt: text}))
    running.run([request])
    assert request.output == text and judge.pauses > 0
    assert judge._size(1).plain.seconds == 1.0


def test_counts_know_how_far_drafts_were_right():
    counts = Counts()
    for accepted, proposed in [(4, 4), (0, 2), (1, 3), (2, 2), (1, 4)]:
        counts.verified(accepted, proposed)
    assert (counts.verifies, counts.drafted, counts.accepted) == (5, 15, 8)
    assert counts.proposed_at == [5, 5, 3, 2] and counts.accepted_at == [4, 2, 1, 1]


@LAYOUTS
def test_an_engine_counts_by_position(layout):
    request = Request(prompt(70), Sampling(max_tokens=41))
    text = alone(layout, request)
    wrong = [(t + 1) % VOCABULARY if i % 4 == 3 else t for i, t in enumerate(text)]
    store = Store(layout, pages=40, slots=8, dtype=torch.float32, poison=True)
    running = Engine(
        CountingModel(layout), store, max_running=1, step_tokens=96, drafter=Right({request.prompt: wrong})
    )
    running.run([request])
    counts = running.counts
    assert request.output == text
    assert sum(counts.proposed_at) == counts.drafted and sum(counts.accepted_at) == counts.accepted
    assert counts.accepted_at[0] == counts.proposed_at[0] > 5  # after a correction the next token is right
    assert counts.accepted_at[3] == 0 < counts.proposed_at[3]
