"""Greedy continuations: equal, parted at a tie, or parted by a bug."""

from dataclasses import replace

import pytest
import torch

from day0.align.gates import greedy_gate
from day0.align.greedy import compare_greedy, reference_greedy

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
