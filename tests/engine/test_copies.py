"""Prompts that begin alike and come together are computed once; nobody waits for ever, and no text changes."""

import pytest
import torch

from day0.engine.engine import Engine
from day0.engine.memory.store import Store
from day0.engine.request import Request, Sampling
from tests.engine.counting_model import STATEFUL, CountingModel
from tests.engine.test_engine import LAYOUTS, alone, assert_nothing_is_held, engine, finish, prompt


def copies(tokens, count=8, **more) -> list[Request]:
    return [Request(tuple(tokens), Sampling(max_tokens=5, temperature=0.9, seed=i), **more) for i in range(count)]


def run(running: Engine, requests: list[Request]) -> None:
    for request in requests:
        running.add(request)
    finish(running)
    assert [r.output for r in requests] == [alone(running.store.layout, r) for r in requests]


@LAYOUTS
@pytest.mark.parametrize("step_tokens", [64, 4096])
@pytest.mark.parametrize("length", [65, 100, 128, 129, 300])
def test_copies_of_a_prompt_compute_it_once(layout, step_tokens, length):
    requests = copies(prompt(length))
    running = engine(layout, step_tokens=step_tokens)
    run(running, requests)
    # The last token is computed by each, for its logits, and so is each generated one but the last.
    assert running.counts.computed_tokens == length + 7 * 1 + 8 * 4
    assert [r.reused for r in requests] == [0, *[length - 1] * 7]
    assert len({tuple(r.output) for r in requests}) > 1
    assert_nothing_is_held(running)


@LAYOUTS
def test_a_first_page_is_what_is_worth_waiting_for(layout):
    requests = copies(prompt(64), count=2)
    running = engine(layout)
    run(running, requests)
    assert [r.admitted_step for r in requests] == [1, 1]


@LAYOUTS
def test_prompts_with_the_same_stem_compute_it_once(layout):
    stem = prompt(200)
    requests = [Request((*stem, *prompt(70, i)), Sampling(max_tokens=5)) for i in range(6)]
    running = engine(layout, step_tokens=4096)
    run(running, requests)
    assert [r.reused for r in requests] == [0, *[192] * 5]


@LAYOUTS
def test_a_prompt_that_goes_on_where_another_ends_waits_for_its_end(layout):
    first = Request(prompt(150), Sampling(max_tokens=5))
    longer = Request((*first.prompt, *prompt(30, 1)), Sampling(max_tokens=5))
    shorter = Request(first.prompt[:100], Sampling(max_tokens=5))
    running = engine(layout, step_tokens=64)
    run(running, [first, longer, shorter])
    assert (longer.reused, shorter.reused) == (150, 99)


def test_others_go_ahead_of_those_that_wait():
    leader, copy = copies(prompt(400), count=2)
    other = Request(prompt(10, 3), Sampling(max_tokens=5))
    running = engine(STATEFUL, step_tokens=64)
    run(running, [leader, copy, other])
    assert (leader.admitted_step, other.admitted_step) == (1, 1)
    assert copy.admitted_step > 400 // 64 and copy.reused == 399


def test_none_waits_for_one_that_comes_after_it():
    """The urgent one is first in the order: it computes all itself, and the others find it."""
    late = copies(prompt(400), count=1)[0]
    running = engine(STATEFUL, step_tokens=64)
    running.add(late)
    running.step()
    urgent = copies(prompt(400), count=1, priority=-1)[0]
    running.add(urgent)
    running.step()
    assert urgent.admitted_step == 2 and late.finished is None
    finish(running)
    assert urgent.output == late.output == alone(STATEFUL, late)


def test_no_one_waits_where_nothing_is_kept_or_for_other_namespaces():
    requests = [Request(prompt(200), Sampling(max_tokens=3), namespace=bytes([i])) for i in range(3)]
    run(engine(STATEFUL), requests)
    assert [(r.admitted_step, r.reused) for r in requests] == [(1, 0)] * 3
    requests = copies(prompt(200), count=3)
    run(engine(STATEFUL, reuse=False), requests)
    assert [(r.admitted_step, r.reused) for r in requests] == [(1, 0)] * 3


@LAYOUTS
@pytest.mark.parametrize("how", ["cancelled", "preempted", "failed"])
def test_copies_go_on_when_the_one_they_wait_for_does_not(layout, how):
    requests = copies(prompt(400), count=4)
    running = engine(layout, step_tokens=64)
    for request in requests:
        running.add(request)
    running.step()
    running.step()
    (leader,) = running.scheduler.running
    if how == "cancelled":
        leader.request.cancel()
    elif how == "preempted":
        running.scheduler.preempt(leader)
    else:
        running.store.memory["keys"][leader.place.pages[1] * 64] = float("nan")
        running.store.index.clear()
    finish(running)
    others = requests[1:] if how != "preempted" else requests
    assert [r.output for r in others] == [alone(layout, r) for r in others]
    assert (requests[0].finished, leader.request.preemptions) == {
        "cancelled": ("cancelled", 0),
        "preempted": ("length", 1),
        "failed": ("error", 0),
    }[how]
    assert all(r.reused >= 64 for r in requests[2:])
    assert_nothing_is_held(running)


def test_copies_go_on_where_no_slot_is_left_for_a_checkpoint():
    store = Store(STATEFUL, pages=40, slots=3, dtype=torch.float32, poison=True)
    running = Engine(CountingModel(STATEFUL), store, max_running=2, step_tokens=64)
    requests = [Request(prompt(5), Sampling(max_tokens=50)), *copies(prompt(300), count=3)]
    run(running, requests)
    assert_nothing_is_held(running)


@LAYOUTS
def test_copies_in_a_small_memory_all_end(layout):
    requests = [r for i in range(4) for r in copies(prompt(150, i), count=4, priority=i % 2)]
    running = engine(layout, pages=9, slots=6, max_running=5, step_tokens=64)
    run(running, requests)
    assert_nothing_is_held(running)
