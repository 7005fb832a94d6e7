# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The middle of a feed-forward network in one pass: act(gate) * up, both clamped first (SwiGLU, arXiv 2002.05202)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import require, require_tensor
from day0.kernels.common.triton_tuning import Space, size_bucket

KERNEL = "mlp/triton"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FORMS = ("silu", "gelu_tanh", "relu", "relu2")

SPACE = Space(
    "mlp.activation", __file__, tuple({"BC": bc, "warps": w} for bc, w in ((1024, 4), (512, 2), (2048, 4), (2048, 8)))
)


@triton.jit
def _activated(z, FORM: tl.constexpr):
    """Comparisons, not minimum and maximum, which drop NaN. gelu: (1 + tanh v) / 2 = sigmoid(2 v)."""
    if FORM == "silu":
        z = z * tl.sigmoid(z)
    elif FORM == "gelu_tanh":
        z = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    else:
        z = tl.where(z < 0.0, 0.0, z)
        if FORM == "relu2":
            z = z * z
    return z


@triton.jit
def _activation(
    inner,
    out,
    hidden,
    inner_row,
    out_row,
    clamp,
    FORM: tl.constexpr,
    GATED: tl.constexpr,
    CLAMPED: tl.constexpr,
    BC: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = channel < hidden
    source = inner + token * inner_row + channel
    value = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    if CLAMPED:
        value = tl.where(value > clamp, clamp, value)
    value = _activated(value, FORM)
    if GATED:
        up = tl.load(source + hidden, mask=mask, other=0.0).to(tl.float32)
        if CLAMPED:
            up = tl.where(up > clamp, clamp, tl.where(up < -clamp, -clamp, up))
        value = value * up
    tl.store(out + token * out_row + channel, value.to(out.dtype.element_ty), mask=mask)


def bucket(tokens: int, hidden: int) -> tuple[int, ...]:
    return size_bucket(tokens), hidden


def activate(
    inner: Tensor,  # [N, 2 * hidden], gate first; [N, hidden] without a gate
    *,
    form: str,
    gated: bool,
    clamp: float,
    out: Tensor,  # [N, hidden]
    launch: dict[str, int] | None = None,
) -> None:
    """out = act(gate) * up, or act(inner). `clamp` L > 0 cuts gate to at most L and up to [-L, L].

    Raises ContractError before the launch.
    """
    tokens, hidden = out.shape
    require(form in FORMS, KERNEL, f"an activation out of {', '.join(FORMS)}, not {form}")
    require(gated or clamp == 0.0, KERNEL, "a gate where there is a clamp")
    require_tensor(KERNEL, "the first product", inner, (tokens, (1 + gated) * hidden), FLOATS)
    require_tensor(KERNEL, "out", out, (None, None), FLOATS)
    if tokens == 0:
        return
    chosen = launch or SPACE.config(bucket(tokens, hidden))
    _activation[(tokens, triton.cdiv(hidden, chosen["BC"]))](
        inner,
        out,
        hidden,
        inner.stride(0),
        out.stride(0),
        clamp,
        FORM=form,
        GATED=gated,
        CLAMPED=clamp > 0.0,
        BC=chosen["BC"],
        num_warps=chosen["warps"],
    )
