# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""RMS and layer normalisation of groups of channels in one pass: a program holds its groups in registers.

y = w x / sqrt(mean(x^2) + eps) (arXiv 1910.07467), with the gate of recurrent mixers before or after it. Fused in
front, the residual sum is written once, and normalised without being read again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Space, size_bucket
from day0.kernels.norm.schema import NormAttributes

KERNEL = "norm/triton"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
MAX_DIM = 32768

# ELEMENTS: of a program's groups together, where one group is smaller.
SPACE = Space(
    "norm",
    __file__,
    tuple({"ELEMENTS": elements, "warps": warps} for elements in (2048, 4096, 8192) for warps in (4, 8, 16)),
)


@triton.jit
def _activated(z, FORM: tl.constexpr):
    gate = tl.sigmoid(z)
    return z * gate if FORM == "silu" else gate


@triton.jit
def _norm(
    x,
    gate,
    residual,
    weight,
    bias,
    y,
    total,
    rows,
    per_token,
    dim,
    groups,
    x_row,
    gate_row,
    residual_row,
    y_row,
    total_row,
    eps,
    LAYER: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    GATE: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    ADD: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    token, group = row // per_token, row % per_token
    channel = tl.arange(0, BD)
    inside = channel < dim
    mask = (row < rows)[:, None] & inside[None, :]
    within = (group * dim)[:, None] + channel[None, :]
    value = tl.load(x + token[:, None] * x_row + within, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + token[:, None] * residual_row + within, mask=mask, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + token[:, None] * total_row + within, rounded, mask=mask)
        value = rounded.to(tl.float32)
    if GATE != "none":
        z = tl.load(gate + token[:, None] * gate_row + within, mask=mask, other=0.0).to(tl.float32)
        if GATE_FIRST:
            value = value * _activated(z, GATE)
    if LAYER:
        value = tl.where(inside[None, :], value - (tl.sum(value, 1) / dim)[:, None], 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 1) / dim + eps)[:, None]
    if ROUND_FIRST:
        value = value.to(y.dtype.element_ty).to(tl.float32)
    owned = ((group % groups) * dim)[:, None] + channel[None, :]
    if WEIGHT != "none":
        w = tl.load(weight + owned, mask=mask, other=0.0).to(tl.float32)
        value = value * (1.0 + w) if WEIGHT == "one_plus" else value * w
    if BIAS:
        value += tl.load(bias + owned, mask=mask, other=0.0).to(tl.float32)
    if GATE != "none" and not GATE_FIRST:
        value = value * _activated(z, GATE)
    tl.store(y + token[:, None] * y_row + within, value.to(y.dtype.element_ty), mask=mask)


def bucket(rows: int, dim: int) -> tuple[int, ...]:
    return size_bucket(rows), dim


def normalise(
    a: NormAttributes,
    x: Tensor,  # [N, C], C a multiple of groups * dim
    gate: Tensor | None,  # like x
    *,
    weight: Tensor | None,  # [groups * dim]
    bias: Tensor | None,  # [groups * dim]
    out: Tensor,  # like x, and may be x
    residual: Tensor | None = None,  # like x
    total: Tensor | None = None,  # like x: x + residual, and may be either of them
    launch: dict[str, int] | None = None,
) -> None:
    """out = norm(x), or with `residual` norm(total) of total = x + residual. Raises ContractError before the launch."""
    tokens, channels = x.shape
    require_tensor(KERNEL, "x", x, (None, None), FLOATS)
    require(channels % (a.groups * a.dim) == 0, KERNEL, f"a multiple of {a.groups * a.dim} channels, not {channels}")
    require(a.dim <= MAX_DIM, KERNEL, f"groups of at most {MAX_DIM} channels, not {a.dim}")
    require((gate is None) == (a.gate == "none"), KERNEL, "a gate exactly where the attributes name one")
    require((residual is None) == (total is None), KERNEL, "both `residual` and `total`, or neither")
    for name, like in (("gate", gate), ("residual", residual), ("total", total), ("out", out)):
        if like is not None:
            require_tensor(KERNEL, name, like, (tokens, channels), FLOATS)
    require((weight is None) == (a.weight == "none"), KERNEL, "a weight exactly where the attributes name one")
    require((bias is None) != a.bias, KERNEL, "a bias exactly where the attributes name one")
    for name, own in (("weight", weight), ("bias", bias)):
        if own is not None:
            require_tensor(KERNEL, name, own, (a.groups * a.dim,), FLOATS)
    per_token = channels // a.dim
    rows = tokens * per_token
    if rows == 0:
        return
    chosen = launch or SPACE.config(bucket(rows, a.dim))
    block = next_power_of_2(a.dim)
    held = max(1, chosen["ELEMENTS"] // block)
    _norm[(triton.cdiv(rows, held),)](
        x,
        x if gate is None else gate,
        x if residual is None else residual,
        x if weight is None else weight,
        x if bias is None else bias,
        out,
        out if total is None else total,
        rows,
        per_token,
        a.dim,
        a.groups,
        x.stride(0),
        0 if gate is None else gate.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        0 if total is None else total.stride(0),
        a.eps,
        LAYER=a.form == "layer",
        WEIGHT=a.weight,
        BIAS=a.bias,
        ROUND_FIRST=a.cast == "before_weight",
        GATE=a.gate,
        GATE_FIRST=a.gate_order == "before_norm",
        ADD=residual is not None,
        BR=held,
        BD=block,
        num_warps=chosen["warps"],
    )
