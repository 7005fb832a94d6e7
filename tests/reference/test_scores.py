"""What a reference chooses by is recorded, in whatever pieces, and found again up to what cannot be chosen."""

import pytest
import torch
from torch import nn

from day0.reference.scores import arrange_scores, find_scores
from day0.reference.trace import trace

NEVER = float("-inf")


class Chooser(nn.Module):
    def forward(self, x):
        whole = x.topk(2, dim=0).indices
        for row in x:
            row.sort(descending=True)
        return whole, x.argsort(1), torch.topk(x, 1).indices, x.long().topk(1)


def test_the_trace_keeps_what_is_chosen_by_with_its_axis_last():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    model = Chooser()
    lines = trace(model, lambda: model(x))[0].scores
    assert [line.rpartition(" ")[2] for line in lines] == ["topk", "sort", "argsort", "topk"], "integers are no scores"
    whole, by_row, sorted_whole, best = lines.values()
    assert torch.equal(whole[0], x.mT) and torch.equal(torch.stack(by_row), x)
    assert torch.equal(sorted_whole[0], x) and torch.equal(best[0], x) and len(whole + sorted_whole + best) == 3


def causal(rows, seed=0):
    """Scores of `rows` queries, one candidate for every two of them that a query has seen; the first row has none."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.arange(rows // 2) * 2 + 1 <= torch.arange(rows)[:, None]
    return torch.randn(rows, rows // 2, dtype=torch.float64, generator=generator).masked_fill(~seen, NEVER)


def test_pieces_are_laid_out_row_by_row():
    scores = causal(7)
    pieces = [row[row > NEVER] for row in scores if (row > NEVER).any()]
    laid_out = arrange_scores(pieces, scores)
    assert torch.equal(laid_out[scores > NEVER], scores[scores > NEVER]) and laid_out[scores == NEVER].isnan().all()
    assert arrange_scores(pieces[1:], scores) is None
    assert find_scores({"a": pieces}, scores).error == 0.0


def test_only_what_may_be_chosen_is_compared():
    scores = causal(6)
    masked = scores.masked_fill(scores == NEVER, torch.finfo(torch.float64).min)
    wider = torch.cat((masked, torch.ones(6, 2)), dim=1)
    assert find_scores({"other": [torch.randn(6, 3)], "a": [wider.reshape(1, 6, 5)]}, scores).location == "a"
    assert find_scores({"a": [scores[:, :2]]}, scores) is None, "too narrow"


@pytest.mark.parametrize("factor,error", [(1.0, 0.0), (4.0, 3.0), (0.25, 0.75), (-1.0, None)])
def test_scores_of_another_scale_are_the_same_ones_with_an_error(factor, error):
    scores = causal(6)
    found = find_scores({"a": [scores]}, scores * factor)
    assert found is None if error is None else found.error == pytest.approx(error)


def test_unrelated_scores_are_not_found():
    assert find_scores({"a": [causal(20, seed=1)]}, causal(20)) is None
    assert find_scores({"a": [torch.zeros(20, 10)]}, causal(20)) is None
