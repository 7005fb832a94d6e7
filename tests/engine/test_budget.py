"""The budget: what it says it takes is what the store takes, to the byte, and what does not fit is said before."""

import pytest
import torch

from day0.artifacts.layout import Component, Layout
from day0.engine.engine import Engine
from day0.engine.memory.budget import Demand, bytes_here, divide
from day0.engine.memory.store import Store
from day0.engine.request import Request, Sampling
from day0.errors import Day0Error
from tests.engine.counting_model import STATEFUL, STATELESS, CountingModel
from tests.engine.test_engine import alone, prompt

MIB = 2**20
MIXED = Layout(
    components=(
        Component(name="keys", role="token_paged", shape=(2, 3), rollback="truncate"),
        Component(
            name="pooled", role="token_paged", shape=(5,), dtype="float32", tokens_per_entry=16, rollback="truncate"
        ),
        Component(name="state", role="per_sequence", shape=(4, 4), dtype="float32", rollback="restore"),
        Component(name="window", role="per_sequence", shape=(7,), rollback="restore"),
        Component(name="ids", role="per_sequence", shape=(3,), dtype="int64", rollback="restore"),
    ),
    vocab_size=8,
)
# A page: 64 entries of 6 activations and 4 of 5 float32; a slot: 16 float32, 7 activations, 3 int64.
PAGE, SLOT = 64 * 6 * 2 + 4 * 5 * 4, 16 * 4 + 7 * 2 + 3 * 8
DEMAND = Demand(running=3, tokens=6400, checkpoints=10, longest=640, drafts=True)


def budget(device_bytes: int, demand: Demand = DEMAND, layout: Layout = MIXED, **more):
    given = {"dtype": torch.bfloat16, "weights": 1000, "workspace": 200, "graphs": 30, **more}
    return divide(layout, demand, device_bytes=device_bytes, **given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_it_counts_is_what_the_store_takes(dtype):
    found = budget(MIB * 50, dtype=dtype)
    store = Store(MIXED, pages=found.store_pages, slots=found.store_slots, dtype=dtype)
    taken = sum(pool.nbytes for pool in store.memory.values())
    assert found.used == taken + 1230
    assert (found.pages, found.running, found.scratch, found.checkpoints) == (100, 3, 3, 10)
    assert store.pages.count - store.pages.reserved == 100 and store.slots.count - store.slots.reserved == 16


def test_the_bytes_of_a_page_and_a_slot_are_those_of_all_components():
    found = budget(MIB)
    assert (found.page_bytes, found.slot_bytes) == (PAGE, SLOT)


def test_at_the_last_byte_all_fits_and_one_less_cuts_both():
    exact = budget(MIB * 50).used
    assert (budget(exact).pages, budget(exact).checkpoints) == (100, 10)
    less = budget(exact - 1)
    assert (less.pages, less.checkpoints) == (99, 9) and less.used < exact
    half = budget(exact - (90 * PAGE + 10 * SLOT) // 2)
    assert (half.pages, half.checkpoints) == (10 + 45, 5)


def test_the_longest_request_is_what_must_fit():
    # 1 + 3 + 3 slots, the null page and ten pages; nothing is left for checkpoints.
    least = 1230 + 7 * SLOT + 11 * PAGE
    found = budget(least)
    assert (found.pages, found.checkpoints, found.used) == (10, 0, least)
    with pytest.raises(Day0Error) as refused:
        budget(least - 1)
    assert "a request of 640 tokens does not fit" in refused.value.message and "\n" not in refused.value.message
    assert "at most 576 tokens" in refused.value.hint and "\n" not in refused.value.hint
    with pytest.raises(Day0Error) as refused:
        budget(1000)
    assert "run fewer sequences, give more memory" in refused.value.hint


def test_without_drafts_or_states_no_slot_is_for_copies():
    plain = Demand(running=3, tokens=6400, checkpoints=10, longest=640)
    assert budget(MIB, plain).store_slots == 1 + 3 + 10
    stateless = budget(MIB, layout=STATELESS)
    assert (stateless.store_slots, stateless.slot_bytes, stateless.checkpoints) == (1 + 3, 0, 0)


def test_the_lines_add_up():
    found = budget(50 * MIB)
    text = "\n".join(found.lines())
    assert "50.0 MiB" in text and len(found.lines()) == 3
    assert f"1 + 3 running + 3 scratch + 10 checkpoints = 17 x {SLOT} bytes" in text
    assert f"1 + 100 = 101 x {PAGE} bytes" in text and "for 6400 tokens" in text
    assert found.lines()[0].endswith(f"+ {(50 * MIB - found.used) / MIB:.1f} MiB left")
    assert budget(found.used - 1).lines()[-1] == "asked for were 6400 tokens and 10 checkpoints"


@pytest.mark.parametrize(
    "layout,tokens,longest,checkpoints,words",
    [
        (STATEFUL, 6400, 640, 0, "no slot is for checkpoints"),
        (STATELESS, 6400, 640, 0, None),
        (STATEFUL, 6400, 640, 1, None),
        (STATELESS, 6400, 64, 5, "the longest request has 64"),
        (STATELESS, 64, 640, 5, "the longest request has 64"),
        (STATELESS, 6400, 65, 5, None),
    ],
)
def test_hits_that_cannot_be_are_warned_of(layout, tokens, longest, checkpoints, words):
    demand = Demand(running=2, tokens=tokens, checkpoints=checkpoints, longest=longest)
    warned = budget(10 * MIB, demand, layout).warnings()
    assert [words in text for text in warned] == ([] if words is None else [True])


@pytest.mark.parametrize("checkpoints", [0, 6])
def test_what_is_warned_of_is_so(checkpoints):
    """All slots run: without one for checkpoints the second turn of a conversation finds nothing."""
    found = divide(
        STATEFUL,
        Demand(running=2, tokens=6400, checkpoints=checkpoints, longest=640),
        dtype=torch.float32,
        device_bytes=MIB,
        weights=0,
        workspace=0,
    )
    store = Store(STATEFUL, pages=found.store_pages, slots=found.store_slots, dtype=torch.float32, poison=True)
    running = Engine(CountingModel(STATEFUL), store, max_running=2, step_tokens=4096)
    running.add(Request(prompt(10), Sampling(max_tokens=60)))
    first = Request(prompt(150), Sampling(max_tokens=4))
    running.add(first)
    running.step()
    running.add(Request(prompt(11), Sampling(max_tokens=8)))  # takes the slot that becomes free
    while first.finished is None or running.scheduler.waiting:
        running.step()
    second = Request((*first.prompt, *first.output, 1, 2), Sampling(max_tokens=5))
    running.run([second])
    assert (second.reused > 0) == bool(checkpoints)
    assert second.output == alone(STATEFUL, second)
    assert bool(found.warnings()) == (checkpoints == 0)


def test_what_this_machine_has_holds_this_process():
    own = torch.zeros(2**24, dtype=torch.uint8)
    assert own.nbytes < bytes_here("cpu") < 2**50


@pytest.mark.gpu
def test_a_gpu_s_bytes_do_not_change_with_what_this_process_takes():
    before = bytes_here("cuda")
    taken = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    # Other allocations of the driver come in units of 2 MiB.
    assert abs(bytes_here("cuda") - before) <= 64 * MIB < taken.nbytes
