"""The reference against itself: one that forgets its cache is found, and only in the check that shows it."""

from dataclasses import replace

import pytest
import torch

from day0.align.gates import self_gate
from day0.align.self_check import CACHED, CHUNKED, check_reference


@pytest.fixture
def ids(prompts):
    return prompts[1].ids


def test_a_sound_reference_agrees_with_itself(exact_reference, reference, ids):
    checks = check_reference(exact_reference, ids)
    checks += check_reference(reference, ids, truth=exact_reference.logits(list(ids)))
    assert [(c.name, c.dtype, c.holds) for c in checks] == [
        (CACHED, "float64", True), (CHUNKED, "float64", True), (CACHED, "float32", True), (CHUNKED, "float32", True)
    ]  # fmt: skip
    assert checks[0].error < 1e-13 and 1e-9 < checks[2].error < 1e-5


def forgetting(reference, *, when):
    """A reference that drops its cache in steps where `when(number of tokens)`."""

    def forward(ids, start=0, cache=None, use_cache=False):
        return reference.forward(ids, start, None if when(ids.shape[-1]) else cache, use_cache)

    return replace(reference, forward=forward)


def test_chunks_that_lose_the_state_fail_their_check_alone(exact_reference, ids):
    broken = forgetting(exact_reference, when=lambda tokens: tokens > 1)
    cached, chunked = check_reference(broken, ids, declared={CHUNKED: "multi-token continuation drops the state"})
    assert cached.holds and not chunked.holds and chunked.error > 1e-3
    assert self_gate("reference", [cached, chunked]).verdict == "holds"
    assert "as its recipe says" in self_gate("reference", [cached, chunked]).detail


def test_an_undeclared_failure_leaves_the_comparison_in_doubt(exact_reference, ids):
    broken = forgetting(exact_reference, when=lambda tokens: tokens == 1)
    checks = check_reference(broken, ids)
    assert [c.holds for c in checks] == [False, False]
    assert self_gate("reference", checks).verdict == "inconclusive"


def test_a_reference_that_raises_fails(exact_reference, ids):
    def forward(ids, start=0, cache=None, use_cache=False):
        if cache is not None and ids.shape[-1] > 1:
            raise ValueError("mask size")
        return exact_reference.forward(ids, start, cache, use_cache)

    cached, chunked = check_reference(replace(exact_reference, forward=forward), ids)
    assert cached.holds and not chunked.holds and "ValueError: mask size" in chunked.detail


def test_float32_is_held_to_three_times_its_rounding(reference, exact_reference, ids):
    truth = exact_reference.logits(list(ids))

    def forward(ids, start=0, cache=None, use_cache=False):
        logits, cache = reference.forward(ids, start, cache, use_cache)
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) * logits.std()
        return logits + 1e-4 * noise * (start > 0), cache

    cached, _ = check_reference(replace(reference, forward=forward), ids, truth=truth)
    assert not cached.holds


def moving(reference, row):
    """A reference that gives other logits for one position where it decodes it from a cache."""

    def forward(ids, start=0, cache=None, use_cache=False):
        logits, cache = reference.forward(ids, start, cache, use_cache)
        return (logits.flip(-1) if (start, ids.shape[-1]) == (row, 1) else logits), cache

    return replace(reference, forward=forward)


@pytest.mark.parametrize("tied,holds", [((), False), ((27,), False), ((28,), True), ((20, 28), True)])
def test_a_row_that_moves_is_left_out_only_where_a_choice_is_on_a_tie(reference, exact_reference, ids, tied, holds):
    def on_a_tie():
        rows = torch.zeros(len(ids), dtype=torch.bool)
        rows[list(tied)] = True
        return rows

    truth = exact_reference.logits(list(ids))
    cached, chunked = check_reference(moving(reference, 28), ids, truth=truth, tied=on_a_tie)
    assert (cached.holds, chunked.holds) == (holds, True)
    assert cached.detail == ("1 rows moved by a tie" if holds else "")


def test_ties_are_not_asked_for_where_no_row_moves(reference, exact_reference, ids):
    def on_a_tie():
        raise AssertionError("asked")

    checks = check_reference(reference, ids, truth=exact_reference.logits(list(ids)), tied=on_a_tie)
    assert all(check.holds for check in checks)


def test_a_row_far_from_its_truth_widens_no_bound(reference, exact_reference, ids):
    """Its own jump is no rounding, wherever it comes from."""
    truth = exact_reference.logits(list(ids))
    plain, _ = check_reference(reference, ids, truth=truth)
    truth[5] = truth[5].flip(-1)
    moved, _ = check_reference(reference, ids, truth=truth)
    assert moved.holds and moved.bound == pytest.approx(plain.bound, rel=0.5)
