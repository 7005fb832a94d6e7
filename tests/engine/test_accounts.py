"""What is told of requests: when they got memory, what was reused and preempted, however they ended."""

import pytest
import torch

from day0.engine.engine import Engine
from day0.engine.memory.store import Store
from day0.engine.request import Request, Sampling
from day0.errors import Day0Error
from tests.engine.counting_model import STATEFUL, STATELESS, CountingModel
from tests.engine.test_engine import LAYOUTS, engine, finish, prompt


@pytest.mark.parametrize("layout", [STATEFUL, STATELESS])
def test_more_sequences_than_slots_are_refused(layout):
    store = Store(layout, pages=9, slots=4, dtype=torch.float32)  # one is for padding
    Engine(CountingModel(layout), store, max_running=3, step_tokens=64)
    with pytest.raises(Day0Error, match="4 running sequences need as many state slots, the memory has 3"):
        Engine(CountingModel(layout), store, max_running=4, step_tokens=64)


def test_a_request_knows_the_step_and_the_time_it_got_memory_first():
    times = iter(range(100, 10_000))
    store = Store(STATEFUL, pages=30, slots=9, dtype=torch.float32, poison=True)
    running = Engine(CountingModel(STATEFUL), store, max_running=1, step_tokens=96, clock=lambda: float(next(times)))
    first, second, third = (Request(prompt(10, i), Sampling(max_tokens=4)) for i in range(3))
    for request in (first, second, third):
        running.add(request)
    assert (first.admitted_step, first.admitted_at) == (None, None)
    running.step()
    assert (first.admitted_step, second.admitted_step) == (1, None) and first.admitted_at == 100.0
    running.scheduler.preempt(running.scheduler.running[0])
    third.cancel()
    finish(running)
    # Four steps for its four tokens; being admitted again changes nothing.
    assert (first.admitted_step, first.admitted_at, first.preemptions) == (1, 100.0, 1)
    assert second.admitted_step == 4 + 1 and second.admitted_at > first.admitted_at
    assert (third.admitted_step, third.admitted_at, third.finished) == (None, None, "cancelled")


@LAYOUTS
@pytest.mark.parametrize("end", ["length", "cancelled", "error"])
def test_reuse_and_preemptions_count_however_a_request_ends(layout, end):
    running = engine(layout, max_running=1)
    first = Request(prompt(200), Sampling(max_tokens=1))
    running.run([first])
    request = Request((*first.prompt, *prompt(100, 1)), Sampling(max_tokens=20))
    never = Request(prompt(90, 2), Sampling(max_tokens=20))
    running.add(request)
    running.add(never)
    running.step()
    running.scheduler.preempt(running.scheduler.running[0])
    never.cancel()
    running.step()
    running.step()
    if end == "cancelled":
        request.cancel()
    elif end == "error":
        running.store.memory["keys"][running.scheduler.running[0].place.pages[0] * 64] = float("nan")
    finish(running)
    assert (request.finished, request.reused) == (end, 200)
    counts = running.counts
    assert (counts.prompt_tokens, counts.reused_tokens, counts.preemptions) == (200 + 300, request.reused, 1)
    assert request.preemptions == 1
