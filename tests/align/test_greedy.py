"""Greedy continuations: equal, parted at a tie, or parted by a bug."""

import math
from dataclasses import replace

import pytest
import torch

from day0.align.gates import greedy_gate
from day0.align.greedy import Judged, Parting, compare_greedy, greedy_cell, is_tie, reference_greedy

TOKENS = 12


@pytest.mark.parametrize("cached", [True, False])
def test_equal(package, reference, exact_reference, prompts, cached):
    cells = compare_greedy(package, reference, exact_reference, prompts, tokens=TOKENS, cached=cached)
    assert [cell.classified for cell in cells] == ["equal", "equal"]
    assert greedy_gate("greedy", cells).verdict == "holds"


def test_the_reference_continues_the_same_with_and_without_its_cache(reference, prompts):
    ids = prompts[0].ids
    with_cache, rows = reference_greedy(reference, ids, TOKENS)
    assert len(with_cache) == len(rows) == TOKENS
    assert reference_greedy(reference, ids, TOKENS, cached=False)[0] == with_cache


def test_a_bug_is_no_tie(package, reference, exact_reference, prompts):
    head = next(op for op in package.operators() if op.name == "lm_head")
    first = reference_greedy(reference, prompts[0].ids, 1)[0][0]
    head.weight.data[first] *= 0.5
    cells = compare_greedy(package, reference, exact_reference, prompts[:1], tokens=TOKENS)
    assert (cells[0].classified, cells[0].first_difference, cells[0].reference_token) == ("bug", 0, first)
    assert cells[0].reference_margin > 100 * cells[0].noise > 0
    gate = greedy_gate("greedy", cells)
    assert gate.verdict == "does not hold" and "parts at token 0" in gate.detail


def tied(reference, first, second, gap):
    """The reference with `second`'s logit just `gap` below `first`'s, wherever `first` is the best."""

    def forward(ids, start=0, cache=None, use_cache=False):
        logits, cache = reference.forward(ids, start, cache, use_cache)
        logits = logits.clone()
        best = logits.argmax(-1) == first
        logits[best, second] = logits[best, first] - gap
        return logits, cache

    return replace(reference, forward=forward)


@pytest.mark.parametrize("gap,classified", [(1e-7, "tie"), (0.1, "bug")])
def test_a_flip_is_a_tie_only_within_the_noise(package, reference, exact_reference, prompts, gap, classified):
    first = reference_greedy(reference, prompts[0].ids, 1)[0][0]
    second = (first + 1) % 256
    head = next(op for op in package.operators() if op.name == "lm_head")
    # the package prefers `second` by a hair where the reference prefers `first` by the gap
    head.weight.data[second] = head.weight.data[first] * (1 + 1e-6)
    cells = compare_greedy(
        package,
        tied(reference, first, second, gap),
        tied(exact_reference, first, second, gap),
        prompts[:1],
        tokens=1,
    )
    assert torch.is_tensor(head.weight)
    assert (cells[0].package_token, cells[0].reference_token) == (second, first)
    assert cells[0].classified == classified


def test_after_a_tie_the_rest_is_compared(package, reference, exact_reference, prompts):
    """Two tokens whose logits are all but equal: every step that prefers one is a tie; a later bug is still found."""
    theirs, _ = reference_greedy(reference, prompts[0].ids, TOKENS)
    first, second = theirs[0], (theirs[0] + 1) % 256
    assert second not in theirs and any(token != first for token in theirs)
    head = next(op for op in package.operators() if op.name == "lm_head")
    head.weight.data[second] = head.weight.data[first] * (1 + 1e-6)
    sides = tied(reference, first, second, 1e-7), tied(exact_reference, first, second, 1e-7)
    cell = compare_greedy(package, *sides, prompts[:1], tokens=TOKENS)[0]
    assert cell.classified == "tie" and cell.ties == tuple(i for i, token in enumerate(theirs) if token == first)
    later = next(token for token in theirs if token != first)
    head.weight.data[later] *= 0.5
    cell = compare_greedy(package, *sides, prompts[:1], tokens=TOKENS)[0]
    assert (cell.classified, cell.first_difference) == ("bug", theirs.index(later)) and cell.ties[0] == 0


def test_logits_that_are_not_finite_are_a_bug(package, reference, exact_reference, prompts):
    head = next(op for op in package.operators() if op.name == "lm_head")
    head.weight.data[7] = math.nan
    cell = compare_greedy(package, reference, exact_reference, prompts[:1], tokens=1)[0]
    assert cell.classified == "bug"
    assert is_tie([0.0], 0.0, 1e-6) and not is_tie([0.0], 0.0, math.inf) and not is_tie([math.nan], 0.0, 1e-6)


def test_the_gate_counts_equal_prompts_and_says_where_the_others_part():
    equal = greedy_cell("a", 9, [])
    tie = greedy_cell("b", 9, [Judged(Parting(i, 1, 0.0), 2, 0.0, 1e-6, tie=True) for i in (3, 5)])
    gate = greedy_gate("greedy", [equal, tie])
    assert gate.verdict == "holds"
    assert gate.detail == "1 of 2 prompts equal for 9 tokens; 1 part at a tie and are equal elsewhere: b at token 3, 5"
    assert greedy_gate("greedy", [tie]).verdict == "inconclusive"
