"""The keys that queries are compared with: one per token, or one per complete pool of tokens."""

from collections.abc import Mapping

import torch
from torch import Tensor

from day0.kernels.common.numerics import upcast
from day0.kernels.common.paged import append_tokens, entry_rows, sequence_tokens
from day0.kernels.common.rope import inverse_frequencies, rotate, tables
from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.interface.batch import Batch


def update_candidates(
    a: IndexSelectAttributes,
    batch: Batch,
    sequence: int,
    span: tuple[int, int, int],  # the sequence's (first row, end row, context length)
    k: Tensor,  # [N, dim]
    pool_gate: Tensor | None,  # [N, dim]
    weights: Mapping[str, Tensor],
    pools: Mapping[str, Tensor],  # by component name
) -> Tensor:  # [candidates, dim]
    """Writes what a sequence's new tokens add to its state and gives all its candidates' keys."""
    first, end, context = span
    if a.pooling == "none":
        append_tokens(pools["keys"], batch, sequence, context, k[first:end])
        return sequence_tokens(pools["keys"], batch, sequence, context + end - first)
    slot = batch.slots[sequence]
    incomplete = context % a.pool
    keys = torch.cat((pools["tail_keys"][slot, :incomplete], k[first:end]))
    gates = None
    if pool_gate is not None:
        gates = torch.cat((pools["tail_gates"][slot, :incomplete], pool_gate[first:end]))
        _keep_tail(pools["tail_gates"], slot, gates, a.pool)
    _keep_tail(pools["tail_keys"], slot, keys, a.pool)
    old, new = context // a.pool, (context + end - first) // a.pool
    rows = entry_rows(batch, sequence, 0, new, a.pool)
    pools["pooled_keys"][rows[old:]] = pool_keys(a, old, keys, gates, **weights)
    return pools["pooled_keys"][rows]


def pool_keys(
    a: IndexSelectAttributes,
    first_pool: int,
    keys: Tensor,  # [T, dim], the first one a pool's first token
    gates: Tensor | None,  # [T, dim]
    *,
    pool_bias: Tensor | None = None,  # [pool, dim]
    pooled_norm: Tensor | None = None,  # [dim]
) -> Tensor:  # [T // pool, dim]
    """The keys of the complete pools among T tokens; `first_pool` is the number of the first in its sequence.

    "softmax" weights a pool's keys per channel by softmax_j(gate_j + pool_bias_j) (transformers
    `Glm5NextTextIndexer.get_pooled_states`), "mean" evenly (`Qwen4ExpTextQSAIndexer`). Softmax, mean, norm and angles
    are float32, each result goes back to the keys' dtype.
    """
    pools = keys.shape[0] // a.pool
    grouped = keys[: pools * a.pool].reshape(pools, a.pool, a.dim)
    if a.pooling == "softmax":
        assert gates is not None and pool_bias is not None
        logits = upcast(gates[: pools * a.pool].reshape(pools, a.pool, a.dim)) + upcast(pool_bias)
        pooled = (logits.softmax(dim=1).to(keys.dtype) * grouped).sum(dim=1)
    else:
        pooled = upcast(grouped).mean(dim=1).to(keys.dtype)
    if pooled_norm is not None:
        inner = upcast(pooled)
        inner = inner * torch.rsqrt(inner.square().mean(dim=-1, keepdim=True) + a.pooled_norm_eps)
        pooled = (inner * (1.0 + upcast(pooled_norm))).to(keys.dtype)
    if a.pooled_rotary_dim:
        starts = torch.arange(first_pool, first_pool + pools, device=keys.device) * a.pool
        angles = tables(starts, inverse_frequencies(a.pooled_rotary_dim, a.pooled_rotary_theta), keys.dtype)
        cos, sin = (t.to(keys.dtype) for t in angles)
        turning, still = pooled.tensor_split((a.pooled_rotary_dim,), dim=-1)
        pooled = torch.cat((rotate(turning, cos, sin, "half"), still), dim=-1)
    return pooled


def _keep_tail(tails: Tensor, slot: Tensor, rows: Tensor, pool: int) -> None:
    """Stores the rows past the last complete pool, zeros behind them: equal histories leave equal slots."""
    left = rows.shape[0] % pool
    tails[slot] = 0
    tails[slot, :left] = rows[rows.shape[0] - left :]
