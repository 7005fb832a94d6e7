"""Pools, the prefix index and the store: what is reused is what was stored, and nothing is leaked."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from day0.artifacts.layout import PAGE_TOKENS, Component, Layout
from day0.engine.memory.pool import Pool, PoolEmpty
from day0.engine.memory.prefix_index import grid
from day0.engine.memory.store import Place, Store

STATEFUL = Layout(
    components=(
        Component(name="keys", role="token_paged", shape=(2,), rollback="truncate"),
        Component(name="pooled", role="token_paged", shape=(2,), tokens_per_entry=4, rollback="truncate"),
        Component(name="state", role="per_sequence", shape=(3,), dtype="float32", rollback="restore"),
    ),
    vocab_size=9,
)
STATELESS = Layout(components=STATEFUL.components[:2], vocab_size=9)


def run(store: Store, place: Place, tokens: list[int], end: int) -> None:
    """A model whose memory says which tokens it has seen: entries count them, the state is their hash."""
    store.grow(place, end)
    for position in range(place.length, end):
        page, row = place.pages[position // PAGE_TOKENS], position % PAGE_TOKENS
        store.memory["keys"][page * PAGE_TOKENS + row] = float(hash(tuple(tokens[: position + 1])) % 9973)
        if (position + 1) % 4 == 0:
            store.memory["pooled"][(page * PAGE_TOKENS + row) // 4] = float(hash(tuple(tokens[: position + 1])) % 997)
    if "state" in store.memory:
        store.memory["state"][place.slot] = state_of(tokens[:end])
    place.length = end


def state_of(tokens: list[int]) -> float:
    return float(hash(tuple(tokens)) % 99991)


def assert_is_memory_of(store: Store, place: Place, tokens: list[int]) -> None:
    for position in range(place.length):
        page, row = place.pages[position // PAGE_TOKENS], position % PAGE_TOKENS
        expected = float(hash(tuple(tokens[: position + 1])) % 9973)
        assert (store.memory["keys"][page * PAGE_TOKENS + row] == expected).all()
        if (position + 1) % 4 == 0:
            pooled = store.memory["pooled"][(page * PAGE_TOKENS + row) // 4]
            assert (pooled == float(hash(tuple(tokens[: position + 1])) % 997)).all()
    if "state" in store.memory and place.length:
        assert (store.memory["state"][place.slot] == state_of(tokens[: place.length])).all()


def make(layout: Layout = STATEFUL, *, pages: int = 40, slots: int = 12, **more: bool) -> Store:
    return Store(layout, pages=pages, slots=slots, dtype=torch.float32, poison=True, **more)


def stored(store: Store, tokens: list[int], *positions: int) -> None:
    place, _ = store.open(tokens)
    for position in positions:
        run(store, place, tokens, position)
        assert store.keep(place, tokens[:position])
    store.close(place)


@pytest.mark.parametrize(
    "kept,prompt,expected",
    [
        ((64,), 100, 64),
        ((100,), 101, 100),  # within a page
        ((100,), 100, 0),  # one token has to be computed: its logits are wanted
        ((64, 128), 128, 64),
        ((64, 128), 129, 128),
        ((30,), 200, 30),  # shorter than a page
        ((64, 100, 128), 110, 100),
        ((64, 100, 128), 129, 128),
    ],
)
def test_reuse_goes_up_to_the_last_checkpoint_before_the_last_token(kept, prompt, expected):
    store = make()
    tokens = [i * i % 7 for i in range(200)]
    stored(store, tokens, *kept)
    place, _ = store.open(tokens[:prompt])
    assert place.length == place.reused == expected
    assert_is_memory_of(store, place, tokens)


def test_a_prompt_that_parts_from_a_stored_one_reuses_what_both_share_and_is_told_the_junction():
    store = make()
    tokens = [i % 5 for i in range(300)]
    stored(store, tokens, 64, 256)
    other = [*tokens[:200], *[8] * 100]
    place, junction = store.open(other)
    assert (place.length, junction) == (64, 192)
    run(store, place, other, junction)
    assert store.keep(place, other[:junction])
    run(store, place, other, 300)
    third, _ = store.open([*tokens[:199], 7, 7])
    assert third.length == 192
    assert_is_memory_of(store, third, tokens)


def test_a_reader_is_not_disturbed_by_the_writer_it_shares_a_page_with():
    store = make()
    tokens = [i % 5 for i in range(120)]
    first, _ = store.open(tokens)
    run(store, first, tokens, 100)
    store.keep(first, tokens[:100])
    second, _ = store.open([*tokens[:100], 7, 7, 7])
    run(store, first, tokens, 120)
    run(store, second, [*tokens[:100], 7, 7, 7], 103)
    assert_is_memory_of(store, first, tokens)
    assert_is_memory_of(store, second, [*tokens[:100], 7, 7, 7])


def test_namespaces_share_nothing():
    store = make()
    tokens = [1] * 200
    place, _ = store.open(tokens, b"a")
    run(store, place, tokens, 128)
    store.keep(place, tokens[:128])
    assert store.open(tokens, b"b")[0].length == 0
    assert store.open(tokens, b"a")[0].length == 128


def test_a_model_without_state_reuses_every_full_page():
    store = make(STATELESS)
    tokens = [i % 5 for i in range(200)]
    stored(store, tokens, 200)
    assert store.open([*tokens[:150], 8, 8])[0].length == 128
    assert store.open([*tokens, 8])[0].length == 200


def test_running_sequences_take_what_the_index_holds_oldest_first():
    store = make(pages=5, slots=4)
    old, new = [1] * 64, [2] * 64
    stored(store, old, 64)
    stored(store, new, 64)
    place, _ = store.open([3] * 200)
    store.grow(place, 192)  # three of four pages: one of the two stored goes
    assert store.open([*old, 1])[0].length == 0
    again, _ = store.open([*new, 1])
    assert again.length == 64
    assert_is_memory_of(store, again, new)
    store.check()


def test_the_last_page_and_slot_are_taken_over_from_the_checkpoint_it_continues():
    store = make(pages=3, slots=3)
    tokens = [1] * 100
    stored(store, tokens, 80)
    other, _ = store.open([2])
    again, _ = store.open(tokens)  # both pages and the last free slot are the checkpoint's
    assert again.length == 80
    assert_is_memory_of(store, again, tokens)
    assert len(store.index) == 0
    store.check()


def test_what_does_not_fit_takes_nothing():
    store = make(pages=4, slots=3)
    place, _ = store.open([1])
    with pytest.raises(PoolEmpty):
        store.grow(place, 4 * PAGE_TOKENS)
    assert not place.pages and store.pages.free == 3
    store.open([2])
    with pytest.raises(PoolEmpty):
        store.open([3])
    store.check()


def test_a_checkpoint_never_takes_a_running_sequence_s_slot():
    store = make(slots=2)
    place, _ = store.open([1, 2])
    run(store, place, [1, 2], 2)
    assert not store.keep(place, [1, 2])
    store.check()


def test_grid_positions_thin_out_with_depth():
    kept = [p for p in range(0, 131072 + 1, 64) if grid(p)]
    assert kept[:16] == list(range(64, 1025, 64))
    assert len(kept) == 16 + 7 * 8
    assert kept[-1] == 131072


def test_a_piece_without_a_holder_cannot_be_shared_or_given_back():
    pool = Pool("page", 3, reserved=1)
    piece = pool.take()
    assert not (pool.share(piece), pool.give_back(piece))[1] and pool.give_back(piece)
    for wrong in (piece, 0, 7):
        with pytest.raises(ValueError, match="no holder"):
            pool.give_back(wrong)
        with pytest.raises(ValueError, match="no holder"):
            pool.share(wrong)


class Sequences(RuleBasedStateMachine):
    """Sequences from few prompts open, run, keep and close in any order in a small store: memory always holds what
    was computed for exactly those tokens, and every page and slot is accounted for."""

    @initialize(stateful=st.booleans())
    def start(self, stateful: bool) -> None:
        self.store = make(STATEFUL if stateful else STATELESS, pages=14, slots=6)
        self.running: list[tuple[Place, list[int]]] = []

    @rule(stem=st.integers(0, 2), fork=st.integers(0, 200), branch=st.integers(0, 2))
    def open(self, stem: int, fork: int, branch: int) -> None:
        tokens = [*[stem] * fork, *[3 + branch] * 120]
        try:
            place, junction = self.store.open(tokens)
        except PoolEmpty:
            return
        assert place.length <= len(tokens) - 1 and junction <= len(tokens) - 1
        assert_is_memory_of(self.store, place, tokens)
        self.running.append((place, tokens))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0), more=st.integers(1, 130), keep=st.booleans())
    def step(self, which: int, more: int, keep: bool) -> None:
        place, tokens = self.running[which % len(self.running)]
        end = min(len(tokens), place.length + more)
        try:
            run(self.store, place, tokens, end)
        except PoolEmpty:
            self.store.close(place)
            self.running.remove((place, tokens))
            return
        if keep and place.length:
            self.store.keep(place, tokens[:end])

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0))
    def close(self, which: int) -> None:
        self.store.close(self.running.pop(which % len(self.running))[0])

    @rule()
    def forget(self) -> None:
        self.store.index.clear()

    @invariant()
    def all_is_accounted_for(self) -> None:
        if hasattr(self, "store"):
            self.store.check()
            for place, tokens in self.running:
                assert_is_memory_of(self.store, place, tokens)


Sequences.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None, derandomize=True)
TestSequences = Sequences.TestCase
