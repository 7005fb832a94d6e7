"""The engine: whatever meets in it, each request gets the text it gets alone."""

import random

import pytest
import torch

from day0.engine.drafting import Drafter, PromptLookup
from day0.engine.engine import Engine
from day0.engine.memory.store import Store
from day0.engine.request import Request, Sampling
from day0.engine.scheduler import AGING_STEPS
from day0.errors import Day0Error
from tests.engine.counting_model import STATEFUL, STATELESS, VOCABULARY, CountingModel

LAYOUTS = pytest.mark.parametrize("layout", [STATEFUL, STATELESS], ids=["stateful", "stateless"])


class Scripted:
    """Proposes a known text, with tokens replaced at seeded places: every accepted length occurs."""

    def __init__(self, texts: dict[tuple[int, ...], list[int]], seed: int = 0) -> None:
        self.texts = texts
        self.random = random.Random(seed)
        self.lengths: set[int] = set()

    def propose(self, request: Request, tokens: list[int], most: int) -> list[int]:
        done = len(tokens) - len(request.prompt)
        text = self.texts.get(request.prompt, [])[done : done + self.random.randint(0, most)]
        return [t if self.random.random() < 0.7 else (t + 1) % VOCABULARY for t in text]

    def accepted(self, request: Request, accepted: int, proposed: int) -> None:
        self.lengths.add(accepted)


def engine(
    layout, *, pages=60, slots=24, max_running=8, step_tokens=96, drafter: Drafter | None = None, wild=False, reuse=True
) -> Engine:
    store = Store(layout, pages=pages, slots=slots, dtype=torch.float32, reuse=reuse, poison=True)
    model = CountingModel(layout, wild=wild)
    return Engine(model, store, max_running=max_running, step_tokens=step_tokens, drafter=drafter)


def alone(layout, request: Request, *, wild=False) -> list[int]:
    """The request's text by itself in a plain engine: whole prompt, no reuse, no drafts."""
    plain = engine(layout, step_tokens=4096, max_running=1, reuse=False, wild=wild)
    twin = Request(request.prompt, request.sampling)
    plain.run([twin])
    assert twin.finished in ("stop", "length")
    return twin.output


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    numbers = random.Random(f"{seed} {length}")
    return tuple(numbers.randrange(VOCABULARY) for _ in range(length))


def finish(running: Engine) -> None:
    while not running.idle:
        running.step()
        running.store.check()


def assert_nothing_is_held(running: Engine) -> None:
    if running.store.index is not None:
        running.store.index.clear()
    running.store.check()
    assert not running.store.pages.used and not running.store.slots.used


@LAYOUTS
@pytest.mark.parametrize("step_tokens", [64, 100, 4096])
def test_requests_together_get_the_text_they_get_alone(layout, step_tokens):
    requests = [Request(prompt(n, i), Sampling(max_tokens=1 + i * 7)) for i, n in enumerate([1, 2, 63, 64, 65, 150, 7])]
    together = engine(layout, step_tokens=step_tokens)
    for request in requests:
        together.add(request)
    finish(together)
    assert [r.output for r in requests] == [alone(layout, r) for r in requests]
    assert {len(r.output) for r in requests} == {1 + i * 7 for i in range(7)}
    assert_nothing_is_held(together)


@LAYOUTS
def test_logits_are_asked_for_where_a_token_is_drawn_and_nowhere_else(layout):
    """The last row of each prompt's chunk, and of a verified sequence its last known token's and each draft's."""
    requests = [Request(prompt(n, i), Sampling(max_tokens=40)) for i, n in enumerate([1, 70, 150])]
    texts = {r.prompt: alone(layout, r) for r in requests}
    running = engine(layout, step_tokens=64, drafter=Scripted(texts))
    model, shapes = CountingModel(layout), []

    def forward(batch, memory):
        rows = batch.asked_rows(model(batch, memory))
        last = (batch.cu_seqlens[1:] - 1).tolist()
        asked = list(range(len(batch.token_ids))) if batch.asked is None else batch.asked.tolist()
        assert set(last) <= set(asked) and asked == sorted(set(asked))
        assert batch.phase == "verify" or asked == last
        shapes.append((batch.phase, len(batch.token_ids), len(rows), batch.sequences))
        return rows

    running._forward = forward
    running.run(requests)
    assert [r.output for r in requests] == list(texts.values())
    assert all(rows == sequences for phase, _, rows, sequences in shapes if phase != "verify")
    assert any(rows < tokens for phase, tokens, rows, _ in shapes if phase == "prefill")
    assert any(sequences < rows for phase, _, rows, sequences in shapes if phase == "verify")


@LAYOUTS
def test_the_second_turn_reuses_the_first_with_its_answer(layout):
    running = engine(layout)
    first = Request(prompt(150), Sampling(max_tokens=20))
    running.run([first])
    second = Request((*first.prompt, *first.output, *prompt(5, 3)), Sampling(max_tokens=20))
    running.run([second])
    assert second.reused == (150 + 20 - 1 if layout is STATEFUL else 169)
    assert second.output == alone(layout, second)
    assert_nothing_is_held(running)


@LAYOUTS
def test_a_prompt_that_parts_from_another_leaves_a_checkpoint_for_the_third(layout):
    running = engine(layout, step_tokens=4096)
    stem = prompt(300)
    requests = [Request((*stem, *prompt(40, i)), Sampling(max_tokens=4)) for i in range(1, 4)]
    for request in requests:
        running.run([request])
    assert [r.reused for r in requests] == [0, 0 if layout is STATEFUL else 256, 256]
    assert [r.output for r in requests] == [alone(layout, r) for r in requests]


@LAYOUTS
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_change_nothing_but_the_number_of_steps(layout, temperature):
    sampling = Sampling(max_tokens=60, temperature=temperature, seed=5)
    requests = [Request(prompt(n, n), sampling) for n in (1, 40, 64, 130)]
    texts = {r.prompt: alone(layout, r) for r in requests}
    drafter = Scripted(texts)
    running = engine(layout, drafter=drafter)
    for request in requests:
        running.add(request)
    finish(running)
    assert [r.output for r in requests] == list(texts.values())
    assert drafter.lengths == {0, 1, 2, 3, 4}
    assert running.counts.accepted > 40
    assert_nothing_is_held(running)


@LAYOUTS
def test_prompt_lookup_saves_steps_where_the_text_repeats(layout):
    request = Request(prompt(30), Sampling(max_tokens=120))
    text = alone(layout, request)
    running = engine(layout, drafter=PromptLookup())
    running.run([request])
    assert request.output == text
    assert running.counts.steps < 110 and running.counts.accepted > 0


class Right(Scripted):
    """Proposes the text itself, as much as it may."""

    def propose(self, request: Request, tokens: list[int], most: int) -> list[int]:
        done = len(tokens) - len(request.prompt)
        return self.texts.get(request.prompt, [])[done : done + most]


@LAYOUTS
def test_a_stop_token_among_accepted_drafts_ends_the_text_there(layout):
    free = Request(prompt(20), Sampling(max_tokens=40))
    text = alone(layout, free)
    stops = {text.index(token) for token in text}
    assert {s % 5 for s in stops} >= {1, 2, 3}  # within a draft of four
    for stop in stops:
        request = Request(free.prompt, Sampling(max_tokens=40, stop_ids=frozenset({text[stop]})))
        running = engine(layout, drafter=Right({free.prompt: text}))
        running.run([request])
        assert (request.output, request.finished) == (text[: stop + 1], "stop")
        again = Request((*request.prompt, *request.output, 1, 2), Sampling(max_tokens=9))
        running.run([again])
        assert again.output == alone(layout, again)


def test_requests_of_different_namespaces_share_nothing():
    running = engine(STATEFUL)
    first = [Request(prompt(100), Sampling(max_tokens=3), namespace=n) for n in (b"a", b"b", b"a")]
    for request in first:
        running.run([request])
    assert [r.reused for r in first] == [0, 0, 99 // 64 * 64]


@LAYOUTS
@pytest.mark.parametrize("drafts", [False, True])
def test_preempted_requests_go_on_where_they_were(layout, drafts):
    requests = [Request(prompt(60, i), Sampling(max_tokens=150)) for i in range(6)]
    texts = {r.prompt: alone(layout, r) for r in requests}
    running = engine(layout, pages=10, slots=9, drafter=Scripted(texts) if drafts else None)
    for request in requests:
        running.add(request)
    finish(running)
    assert [r.output for r in requests] == list(texts.values())
    assert sum(r.preemptions for r in requests) > 0
    assert requests[0].preemptions == 0  # the first to come is never made to wait
    assert_nothing_is_held(running)


def test_a_more_urgent_request_is_served_first_and_others_are_not_forgotten():
    running = engine(STATEFUL, max_running=1)
    slow = [Request(prompt(10, i), Sampling(max_tokens=40)) for i in range(2)]
    for request in slow:
        running.add(request)
    running.step()
    urgent = Request(prompt(10, 9), Sampling(max_tokens=3), priority=-1)
    running.add(urgent)
    for _ in range(5):
        running.step()
    assert urgent.finished == "length" and slow[0].finished is None and slow[0].preemptions == 1
    finish(running)
    assert [r.output for r in slow] == [alone(STATEFUL, r) for r in slow]


def test_no_stream_of_urgent_requests_keeps_another_one_waiting_for_ever():
    running = engine(STATEFUL, max_running=1)
    patient = Request(prompt(5), Sampling(max_tokens=4), priority=1)
    running.add(patient)
    for i in range(2 * AGING_STEPS):
        if running.scheduler.waiting < 4:
            running.add(Request(prompt(4, i), Sampling(max_tokens=1)))
        running.step()
        if patient.finished:
            break
    assert patient.finished == "length" and i > AGING_STEPS // 2


@LAYOUTS
def test_cancelled_requests_give_back_everything(layout):
    running = engine(layout, max_running=2)
    requests = [Request(prompt(80, i), Sampling(max_tokens=100)) for i in range(4)]
    for request in requests:
        running.add(request)
    for _ in range(6):
        running.step()
    for request in requests:
        request.cancel()
    running.step()
    assert running.idle and {r.finished for r in requests} == {"cancelled"}
    assert_nothing_is_held(running)


@pytest.mark.parametrize(
    "tokens,sampling,problem",
    [
        ((), Sampling(), "no tokens"),
        ((VOCABULARY,), Sampling(), "outside the vocabulary"),
        ((-1,), Sampling(), "outside the vocabulary"),
        ((1,) * 600, Sampling(), "more than 576"),
        ((1,), Sampling(max_tokens=576), "more than 576"),
    ],
)
def test_what_could_never_run_is_refused(tokens, sampling, problem):
    running = engine(STATEFUL, pages=10)
    with pytest.raises(Day0Error, match=problem):
        running.add(Request(tokens, sampling))
    assert running.idle


def test_logits_that_are_not_numbers_end_their_request_only():
    running = engine(STATEFUL)
    good, bad = (Request(prompt(70, i), Sampling(max_tokens=30)) for i in range(2))
    for request in (good, bad):
        running.add(request)
    running.step()
    running.step()
    victim = next(s for s in running.scheduler.running if s.request is bad)
    running.store.memory["keys"][victim.place.pages[0] * 64] = float("nan")
    finish(running)
    assert bad.finished == "error" and "not numbers" in bad.error
    assert good.output == alone(STATEFUL, good)
    assert_nothing_is_held(running)


@LAYOUTS
def test_a_soak_of_everything_at_once_leaks_nothing_and_changes_no_text(layout):
    """Random prompts that share stems, drafts, cancellations, preemptions and a small pool."""
    chance = random.Random(3)
    stems = [prompt(n, 50 + n) for n in (30, 70, 128, 200)]
    texts: dict[tuple[int, ...], list[int]] = {}
    running = engine(layout, pages=20, slots=10, max_running=6, step_tokens=80, drafter=Scripted(texts))
    expected: dict[Request, list[int]] = {}
    for i in range(40):
        tokens = (*chance.choice(stems), *prompt(chance.randint(0, 50), i))
        sampling = Sampling(max_tokens=chance.randint(1, 60), temperature=chance.choice([0.0, 0.9]), seed=i)
        request = Request(tokens, sampling, priority=chance.choice([-1, 0, 0, 1]))
        expected[request] = alone(layout, request)
        texts.setdefault(tokens, expected[request])
    waiting = list(expected)
    while waiting or not running.idle:
        while waiting and chance.random() < 0.5:
            running.add(waiting.pop())
        if chance.random() < 0.03 and running.scheduler.running:
            chance.choice(running.scheduler.running).request.cancel()
        running.step()
        running.store.check()
    for request, text in expected.items():
        assert request.output == (text if request.finished == "length" else text[: len(request.output)])
    assert sum(r.preemptions for r in expected) > 0 and sum(r.reused for r in expected) > 500
    assert {r.finished for r in expected} == {"cancelled", "length"}
    assert_nothing_is_held(running)
