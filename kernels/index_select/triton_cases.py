"""Problems for `conformance.check` at the edges of the Triton contract, and how far a choice may be from float64's.

Scores of small integers are exact in every dtype, so that a choice of them must be equal to the last tie. Of scores
that are rounded, two that stand closer than their error may change places: see `score_error`.
"""

from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.index_select.schema import IndexSelectAttributes, weights

TOKEN = dict(heads=4, dim=32, budget=8, scale=0.5, score="relu_weighted", weight_scale=0.25)
SUM = dict(heads=3, dim=64, budget=12, scale=0.5, score="relu_sum")
SOFTMAX = TOKEN | dict(pooling="softmax", pool=4, tail=True)
MEAN = SUM | dict(pooling="mean", pool=4, tail=True)


def integer_ports(a: IndexSelectAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    """Small integers: all products, sums and means of them are exact in every dtype, and many scores are equal."""

    def draw(width: int) -> Tensor:
        return torch.randint(-1, 2, (n, width), generator=generator).double()

    shared = 4.0 * torch.randint(-1, 2, (n, a.dim), generator=generator).double()
    head_weights = draw(a.heads) if a.score == "relu_weighted" else None
    # Equal gates make softmax an even mean, with weights 1 / pool.
    gate = torch.zeros(n, a.dim, dtype=torch.float64) if a.pooling == "softmax" else None
    return draw(a.heads * a.dim), shared, head_weights, gate


def equal_ports(a: IndexSelectAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    """One key for all tokens: every score of a query is the same."""
    q, k, head_weights, gate = integer_ports(a, n, generator)
    assert k is not None
    return q, torch.ones_like(k) * 4.0, head_weights, gate


def zero_weights(a: IndexSelectAttributes, generator: torch.Generator) -> dict[str, Tensor]:
    """No bias, and a norm that leaves its input's scale."""
    return {name: torch.zeros(w.shape, dtype=torch.float64) for name, w in weights(a).items()}


def _case(name: str, attributes: dict[str, Any], chunks: tuple[tuple[int, ...], ...], **options: Any) -> Case:
    ports = options.pop("ports", integer_ports)
    return Case(name, attributes, chunks, ports, zero_weights, **options)


# Interpreted, each row that sees more than its budget takes a quarter of a second: budgets leave few of them.
CASES: tuple[Case, ...] = (
    _case("tokens, prefill across a page, then decode", TOKEN | dict(budget=61), ((63, 1, 1, 1), (3, 0, 1, 1))),
    _case("tokens, equal scores", TOKEN, ((11,), (7, 1, 1)), ports=equal_ports),
    _case("sum of an odd number of heads, ragged", SUM, ((1, 12, 1), (0, 13), (6,))),
    _case("softmax pools, tail kept and completed", SOFTMAX, ((10, 1, 3, 1), (5, 3))),
    _case("softmax pools without tail", SOFTMAX | dict(tail=False), ((13, 1), (3, 1, 1))),
    _case("mean pools, equal scores", MEAN, ((15, 1), (3, 2)), ports=equal_ports),
    _case("pools of one token", TOKEN | dict(pooling="mean", pool=1, tail=True), ((9, 2), (1, 8))),
    _case("verify", TOKEN | dict(budget=17), ((15, 5), (3, 4)), phase="verify"),
)


def score_error(a: IndexSelectAttributes, q: Tensor, keys: Tensor, head_weights: Tensor | None) -> Tensor:
    """A bound [n, candidates] on the error of float32 scores of these very q [n, heads * dim] and keys, in float64.

    Sums of dim products and of heads terms, in any order, err by at most (dim + heads + 4) u sum |terms|, u = 2^-24
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1); twice that for tensor cores, which may cut
    off where they add instead of rounding.
    """
    queries = q.double().reshape(-1, a.heads, a.dim).abs()
    sizes = torch.einsum("nhd,cd->nhc", queries, keys.double().abs()) * a.scale
    share = sizes.new_ones(sizes.shape[:2]) if head_weights is None else head_weights.double().abs() * a.weight_scale
    return 2 * (a.dim + a.heads + 4) * 2.0**-24 * torch.einsum("nh,nhc->nc", share, sizes)


def misplaced(
    a: IndexSelectAttributes, chosen: Tensor, scores: Tensor, error: Tensor, positions: Tensor
) -> list[tuple[int, str]]:
    """What is wrong with chosen [n, width], given float64 scores [n, candidates] and a bound on the tested ones' error.

    A row must be ascending tokens, then -1, of exactly min(k, visible) whole pools and the tail; a pool whose score is
    further above the best k's cut than the errors allow must be in it, one that is further below must not be.
    """
    wrong = []
    chosen, scores, error = chosen.cpu(), scores.cpu().double(), error.cpu()
    for row, position in enumerate(positions.tolist()):
        visible = (position + 1) // a.pool
        count = min(a.budget // a.pool, visible)
        tokens = [t for t in chosen[row].tolist() if t >= 0]
        tail = list(range(visible * a.pool, position + 1)) if a.tail else []
        pools = sorted({t // a.pool for t in tokens if t < visible * a.pool})
        whole = [j * a.pool + i for j in pools for i in range(a.pool)] + tail
        if chosen[row].tolist() != whole + [-1] * (a.width - len(whole)) or len(pools) != count:
            wrong.append((row, f"not {count} whole pools in ascending order, the tail, then -1"))
        elif 0 < count < visible:
            cut = scores[row, :visible].sort(descending=True).values[count - 1]
            doubt = error[row, :visible] + error[row, :visible].max()
            taken = torch.zeros(visible, dtype=torch.bool)
            taken[pools] = True
            lost = (scores[row, :visible] > cut + doubt) & ~taken
            extra = (scores[row, :visible] < cut - doubt) & taken
            if lost.any() or extra.any():
                wrong.append((row, f"{int(lost.sum())} better ones left out, {int(extra.sum())} worse ones in"))
    return wrong
