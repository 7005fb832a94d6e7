"""Index scoring and selection in Triton: new keys are written first, then chosen from block by block.

A NaN score counts as the largest, as in the reference. It also raises a flag on the device, kept until `nan_seen` asks
for it: a launch cannot raise an error without waiting for the device.
"""

from functools import cache

import torch
from torch import Tensor

from day0.kernels.common.rope import inverse_frequencies
from day0.kernels.common.triton_launch import require
from day0.kernels.index_select.schema import IndexSelectAttributes, components
from day0.kernels.index_select.triton_choose import KERNEL, choose, plan, workspace
from day0.kernels.index_select.triton_update import write_pools, write_tokens
from day0.kernels.interface.batch import Batch


def index_select(
    a: IndexSelectAttributes,
    q: Tensor,  # [N, heads * dim]
    k: Tensor,  # [N, dim]
    weights: Tensor | None = None,  # [N, heads], score "relu_weighted"
    pool_gate: Tensor | None = None,  # [N, dim], pooling "softmax"
    *,
    pool_bias: Tensor | None = None,  # [pool, dim]
    pooled_norm: Tensor | None = None,  # [dim]
    batch: Batch,
    **pools: Tensor,  # keys; or pooled_keys, tail_keys, tail_gates
) -> Tensor:  # [N, width] int64
    """What the reference's `index_select` gives; rows of q behind the last sequence (padding) get -1.

    Raises ContractError before anything is launched when a tensor or attribute is outside the contract.
    """
    wanted = {c.name for c in components(a)}
    require(set(pools) == wanted, KERNEL, f"the pools {', '.join(sorted(wanted))}, not {', '.join(sorted(pools))}")
    rows = q.shape[0]
    require(k.shape[0] == rows, KERNEL, f"a key for each of {rows} queries, not {k.shape[0]}")
    steps = plan(a, batch, rows, q.dtype, q.device)
    scratch = workspace(steps, q.device)
    out = torch.empty(rows, a.width, dtype=torch.int64, device=q.device)
    if a.pooling == "none":
        keys = pools["keys"]
        write_tokens(a, k, keys, batch=batch)
    else:
        keys = pools["pooled_keys"]
        turning = a.pooled_rotary_dim
        frequencies = _frequencies(turning, a.pooled_rotary_theta, q.device) if turning else None
        gates = pools.get("tail_gates")
        write_pools(a, k, pool_gate, pool_bias, pooled_norm, frequencies, keys, pools["tail_keys"], gates, batch=batch)
    choose(a, steps, q, keys, weights, out, _flag(q.device), scratch, batch=batch)
    return out


def nan_seen(device: torch.device | str) -> bool:
    """Whether a score was NaN on this device since the last call. Waits for the device: not for captures."""
    flag = _flag(torch.device(device))
    seen = bool(flag.item())
    flag.zero_()
    return seen


@cache
def _flag(device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)


@cache
def _frequencies(rotary_dim: int, theta: float, device: torch.device) -> Tensor:
    return inverse_frequencies(rotary_dim, theta).to(device)
