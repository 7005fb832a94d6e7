"""Plain PyTorch index scoring and selection (the "indexer" of DeepSeek sparse attention and its pooled relatives)."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from day0.kernels.common.numerics import upcast
from day0.kernels.index_select.candidates import pool_keys, update_candidates
from day0.kernels.index_select.schema import IndexSelectAttributes, components
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.choice import Choice

__all__ = ["choices", "index_scores", "index_select", "pool_keys", "select"]


def index_select(
    a: IndexSelectAttributes,
    q: Tensor,  # [N, heads * dim], normed and rotated as the family does
    k: Tensor,  # [N, dim], the same; raw where norm and rotation come after pooling
    weights: Tensor | None = None,  # [N, heads], score "relu_weighted"
    pool_gate: Tensor | None = None,  # [N, dim], pooling "softmax"
    *,
    pool_bias: Tensor | None = None,  # [pool, dim]
    pooled_norm: Tensor | None = None,  # [dim]
    batch: Batch,
    **pools: Tensor,  # keys; or pooled_keys, tail_keys, tail_gates
) -> Tensor:  # [N, width] int64
    """Positions each query shall attend to within its sequence: ascending, then -1 in the columns left over.

    Equal scores prefer the earlier candidate. A query that sees no more than the budget gets all it sees.
    Raises ValueError when the optional ports are not those of the attributes.
    """
    named = {"pool_bias": pool_bias, "pooled_norm": pooled_norm}
    chosen = torch.empty(q.shape[0], a.width, dtype=torch.int64, device=q.device)
    for rows, scores, visible in _scored(a, q, k, weights, pool_gate, named, batch, pools):
        chosen[rows] = select(a, scores, visible, batch.positions[rows])
    return chosen


def choices(
    a: IndexSelectAttributes,
    q: Tensor,
    k: Tensor,
    weights: Tensor | None = None,
    pool_gate: Tensor | None = None,
    *,
    pool_bias: Tensor | None = None,
    pooled_norm: Tensor | None = None,
    batch: Batch,
    **pools: Tensor,
) -> dict[str, Choice]:
    """The choice among tokens, or pools, that `index_select` makes on these arguments; every sequence from its first
    token on, so that what it has written to the pools is written again.
    """
    named = {"pool_bias": pool_bias, "pooled_norm": pooled_norm}
    most = max((end - start) // a.pool for start, end, _ in batch.spans())
    scores = torch.full((q.shape[0], most), float("-inf"), dtype=upcast(q).dtype, device=q.device)
    for rows, found, visible in _scored(a, q, k, weights, pool_gate, named, batch, pools):
        scores[rows, : found.shape[1]] = found.masked_fill(~visible, float("-inf"))
    return {"tokens" if a.pooling == "none" else "pools": Choice(scores, a.budget // a.pool)}


def _scored(
    a: IndexSelectAttributes,
    q: Tensor,
    k: Tensor,
    weights: Tensor | None,
    pool_gate: Tensor | None,
    named: Mapping[str, Tensor | None],
    batch: Batch,
    pools: Mapping[str, Tensor],
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Per sequence its rows, with their scores of its candidates and which of them they see. Updates the pools."""
    if (weights is not None) != (a.score == "relu_weighted"):
        raise ValueError(f"score {a.score} {'needs' if weights is None else 'takes no'} weights")
    if (pool_gate is not None) != (a.pooling == "softmax"):
        raise ValueError(f"pooling {a.pooling} {'needs' if pool_gate is None else 'takes no'} pool_gate")
    if set(pools) != {c.name for c in components(a)}:
        raise ValueError(f"pools are {sorted(pools)}, not {[c.name for c in components(a)]}")
    owned = {name: weight for name, weight in named.items() if weight is not None}
    for sequence, span in enumerate(batch.spans()):
        rows = slice(*span[:2])
        keys = update_candidates(a, batch, sequence, span, k, pool_gate, owned, pools)
        own = None if weights is None else weights[rows]
        yield rows, *index_scores(a, q[rows], keys, own, batch.positions[rows])


def index_scores(
    a: IndexSelectAttributes,
    q: Tensor,  # [n, heads * dim]
    keys: Tensor,  # [candidates, dim], tokens or complete pools from the sequence's first on
    weights: Tensor | None,  # [n, heads]
    positions: Tensor,  # [n] int64, the queries' positions in the sequence
) -> tuple[Tensor, Tensor]:  # [n, candidates] float32 (float64) and bool
    """Scores of one sequence's queries, and which candidates each may choose: those whose last token it sees.

    relu_weighted: transformers `DeepseekV32Indexer`, `Glm5NextTextIndexer`; relu_sum: `Qwen4ExpTextQSAIndexer`.
    """
    queries = upcast(q).reshape(-1, a.heads, a.dim)
    hits = torch.relu(torch.einsum("nhd,cd->nhc", queries, upcast(keys)) * a.scale)
    if weights is not None:
        scores = torch.einsum("nh,nhc->nc", upcast(weights) * a.weight_scale, hits)
    else:
        scores = hits.sum(dim=1)
    ends = torch.arange(1, keys.shape[0] + 1, device=q.device) * a.pool - 1
    return scores, ends <= positions[:, None]


def select(
    a: IndexSelectAttributes,
    scores: Tensor,  # [n, candidates]
    visible: Tensor,  # [n, candidates] bool
    positions: Tensor,  # [n] int64
) -> Tensor:  # [n, width] int64
    """The tokens of the best budget // pool visible candidates, with the tail where asked for; ascending, then -1."""
    order = scores.masked_fill(~visible, float("-inf")).argsort(dim=-1, descending=True, stable=True)
    best = order[:, : a.budget // a.pool]
    offsets = torch.arange(a.pool, device=scores.device)
    tokens = best[:, :, None] * a.pool + offsets
    hole = 2**62  # beyond any position; a power of two, because `pad` takes its value as a float
    tokens = tokens.masked_fill(~visible.gather(1, best)[:, :, None], hole).flatten(1)
    if a.tail:
        complete = (positions[:, None] + 1) // a.pool * a.pool
        tail = complete + offsets[:-1]
        tokens = torch.cat((tokens, tail.masked_fill(tail > positions[:, None], hole)), dim=1)
    tokens = torch.nn.functional.pad(tokens, (0, a.width - tokens.shape[1]), value=hole).sort(dim=1).values
    return tokens.masked_fill(tokens == hole, -1)
