# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What needs no statistics: a branch's output added to a plain stream, copies of a vector, sums of streams."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import require_tensor

KERNEL = "residual_mix/triton (streams)"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def _add(h, y, out, width, h_row, y_row, out_row, multiplier, BC: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = channel < width
    value = tl.load(h + token * h_row + channel, mask=mask, other=0.0).to(tl.float32)
    value += multiplier * tl.load(y + token * y_row + channel, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * out_row + channel, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _copies(x, out, width, x_row, out_row, out_stream, STREAMS: tl.constexpr, BC: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = channel < width
    value = tl.load(x + token * x_row + channel, mask=mask, other=0.0)
    for s in tl.static_range(STREAMS):
        tl.store(out + token * out_row + s * out_stream + channel, value, mask=mask)


@triton.jit
def _sum(h, out, width, h_row, h_stream, out_row, factor, STREAMS: tl.constexpr, BC: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = channel < width
    total = tl.zeros([BC], tl.float32)
    for s in tl.static_range(STREAMS):
        total += tl.load(h + token * h_row + s * h_stream + channel, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * out_row + channel, (total * factor).to(out.dtype.element_ty), mask=mask)


def add(h: Tensor, y: Tensor, *, multiplier: float, out: Tensor) -> None:
    """out = h + multiplier * y, [N, width] each; `out` may be h. Raises ContractError before the launch."""
    require_tensor(KERNEL, "h", h, (None, None), FLOATS)
    require_tensor(KERNEL, "y", y, tuple(h.shape), FLOATS)
    require_tensor(KERNEL, "out", out, tuple(h.shape), FLOATS)
    if h.shape[0]:
        strides = h.stride(0), y.stride(0), out.stride(0)
        _add[_grid(h)](h, y, out, h.shape[1], *strides, multiplier, BC=1024, num_warps=4)


def expand(x: Tensor, *, out: Tensor) -> None:
    """out[:, s] = x for every stream s: [N, width] -> [N, streams, width]. Raises ContractError before the launch."""
    require_tensor(KERNEL, "x", x, (None, None), FLOATS)
    require_tensor(KERNEL, "out", out, (x.shape[0], None, x.shape[1]), (x.dtype,))
    if x.shape[0]:
        strides = x.stride(0), out.stride(0), out.stride(1)
        _copies[_grid(x)](x, out, x.shape[1], *strides, STREAMS=out.shape[1], BC=1024, num_warps=4)


def collapse(h: Tensor, *, mean: bool, out: Tensor) -> None:
    """out = sum or mean of the streams: [N, streams, width] -> [N, width]. Raises ContractError before the launch."""
    require_tensor(KERNEL, "h", h, (None, None, None), FLOATS)
    require_tensor(KERNEL, "out", out, (h.shape[0], h.shape[2]), (h.dtype,))
    if h.shape[0]:
        strides = h.stride(0), h.stride(1), out.stride(0)
        factor = 1.0 / h.shape[1] if mean else 1.0
        _sum[_grid(out)](h, out, h.shape[2], *strides, factor, STREAMS=h.shape[1], BC=1024, num_warps=4)


def _grid(x: Tensor) -> tuple[int, int]:
    return x.shape[0], triton.cdiv(x.shape[1], 1024)
