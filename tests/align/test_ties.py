"""Ties are shown by the scores at the cut, and reach the rows that read them."""

import pytest
import torch

from day0.align.capture import Call, Capture
from day0.align.ties import on_a_tie, tied_rows
from day0.align.training_side import ReferenceCapture
from day0.kernels.interface.choice import Choice
from day0.kernels.registry import get_kind
from day0.reference.match import Match

NEVER = float("-inf")
TRUTH = torch.tensor([[4.0, 3.0, 2.0, 1.0]], dtype=torch.float64)


def tied(truth, moved, *, kept=2, ours=None):
    choice = Choice(truth.float() if ours is None else ours, kept)
    return on_a_tie(choice, truth, (truth + moved).float()).tolist()


def test_a_gap_at_the_cut_within_four_times_the_rounding_is_a_tie():
    for gap, expected in ((3.9e-3, True), (4.1e-3, False)):
        truth = torch.tensor([[4.0, 3.0, 3.0 - gap, 1.0]], dtype=torch.float64)
        assert tied(truth, torch.tensor([[1e-3, 0.0, 0.0, 0.0]], dtype=torch.float64)) == [expected]


def test_close_scores_elsewhere_are_no_tie():
    truth = torch.tensor([[3.0, 3.0, 1.0, 1.0]], dtype=torch.float64)
    assert tied(truth, torch.zeros(1, 4)) == [False]
    assert tied(truth, torch.zeros(1, 4), kept=1) == [True] == tied(truth, torch.zeros(1, 4), kept=3)


def test_a_scores_own_rounding_counts_where_the_reference_happens_to_have_none():
    truth = torch.tensor([[2.0, 1.0 + 2**-24, 1.0, 0.0]], dtype=torch.float64)
    assert tied(truth, torch.zeros(1, 4)) == [True]


def test_what_may_not_be_chosen_ties_with_nothing():
    hidden = torch.tensor([[4.0, 3.0, NEVER, NEVER]])
    assert tied(torch.full((1, 4), 3.0, dtype=torch.float64), torch.zeros(1, 4), ours=hidden) == [False]
    assert tied(TRUTH, torch.zeros(1, 4), kept=4) == tied(TRUTH, torch.zeros(1, 4), kept=9) == [False]


@pytest.mark.parametrize("mode,reached", [("isolated", [{1}, set(), set()]), ("propagated", [{1}, {1, 2}, {1, 2}])])
def test_a_tie_reaches_the_rows_that_read_it(mode, reached):
    """Layer 0 chooses, row 1 of three sits on a tie."""
    exact = torch.tensor([[2.0, 1.0], [1.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    ties = tied_rows(*runs(exact), {("layers.0.a", "", "scores of x"): [Match("line", (), 0.0)]}, mode)
    assert [set(ties.shown[key].nonzero().flatten().tolist()) for key in (0, 1, None)] == reached
    assert not any(rows.any() for rows in ties.unknown.values())


def test_scores_that_the_reference_does_not_show_leave_every_row_open():
    ties = tied_rows(*runs(torch.ones(3, 2, dtype=torch.float64)), {}, "isolated")
    assert not any(rows.any() for rows in ties.shown.values())
    assert [bool(ties.unknown[key].all()) for key in (0, 1, None)] == [True, False, False]


def test_a_row_whose_candidates_are_all_kept_has_no_tie():
    scores = torch.tensor([[1.0, NEVER], [1.0, 1.0], [NEVER, NEVER]], dtype=torch.float64)
    ties = tied_rows(*runs(scores), {}, "isolated")
    assert ties.unknown[0].tolist() == [False, True, False]


def runs(exact):
    attributes = get_kind("norm").parse(dict(dim=4, eps=1e-5))
    x = torch.zeros(3, 4)
    call = Call("layers.0.a", "norm", "", (x,), (x,), attributes, lambda _: (x,), {"x": Choice(exact.float(), 1)})
    package = Capture(calls=[call], layer_outputs={0: x, 1: x}, logits=x)
    return package, ReferenceCapture(scores={"line": [exact]}), ReferenceCapture(scores={"line": [exact.float()]})
