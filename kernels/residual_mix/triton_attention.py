# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Attention Residuals: one program reads the sources of a token once, scores, normalises and mixes them.

Formulas: attention.py beside this file (arXiv 2603.15031). The sources of a token are held in registers in blocks of
BL; with more than one block the mixture is rescaled as the running maximum grows (online softmax, arXiv 1805.02867).
A fused launch first adds the branch's output to the last source, or makes it one, in the preallocated stream buffer.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Space, size_bucket

KERNEL = "residual_mix/triton (attention)"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
MAX_WIDTH = 16384
MAX_SOURCES = 128
_HELD = 1 << 16  # elements of a block of sources that registers hold

# BL: sources held at a time (no more than there are, nor than registers hold).
SPACE = Space(
    "residual_mix.attention",
    __file__,
    tuple({"BL": bl, "warps": warps} for bl, warps in ((4, 8), (8, 16), (2, 8), (2, 4))),
)


@triton.jit
def _read(
    h,
    y,
    query,
    key_weight,
    x,
    p,
    sources,
    width,
    h_row,
    h_source,
    y_row,
    x_row,
    eps,
    scale,
    WEIGHTED: tl.constexpr,
    NORMED: tl.constexpr,
    ADD: tl.constexpr,
    OPENS: tl.constexpr,
    ALL: tl.constexpr,
    BL: tl.constexpr,
    BH: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BH)
    inside = channel < width
    q = tl.load(query + channel, mask=inside, other=0.0).to(tl.float32)
    if WEIGHTED:
        q = q * tl.load(key_weight + channel, mask=inside, other=0.0).to(tl.float32)
    every = tl.arange(0, ALL)
    scores = tl.full([ALL], -float("inf"), tl.float32)
    top = -float("inf")
    weight = 0.0
    total = tl.zeros([BH], tl.float32)
    for first in range(0, sources, BL):
        source = first + tl.arange(0, BL)
        here = source < sources
        at = h + token * h_row + source[:, None].to(tl.int64) * h_source + channel[None, :]
        mask = here[:, None] & inside[None, :]
        if ADD:
            newest = (source == sources - 1)[:, None]
            before = mask & ~newest if OPENS else mask
            added = tl.load(y + token * y_row + channel, mask=inside, other=0.0).to(tl.float32)
            old = tl.load(at, mask=before, other=0.0)
            value = tl.where(newest, old.to(tl.float32) + added[None, :], old.to(tl.float32)).to(h.dtype.element_ty)
            tl.store(at, value, mask=mask & newest)
        else:
            value = tl.load(at, mask=mask, other=0.0)
        wide = value.to(tl.float32)
        inverse = tl.rsqrt(tl.sum(wide * wide, 1) / width + eps)
        score = scale * inverse * tl.sum(wide * q[None, :], 1)
        score = tl.where(here, score, -float("inf"))
        placed = tl.sum(tl.where((every[:, None] == source[None, :]) & here[None, :], score[None, :], 0.0), 1)
        scores = tl.where((every >= first) & (every < first + BL) & (every < sources), placed, scores)
        grown = tl.maximum(top, tl.max(score, 0))
        # -inf minus -inf is NaN: before the first block there is nothing to rescale.
        shrink = tl.where(top == grown, 1.0, tl.exp(top - grown))
        share = tl.exp(score - grown)
        weight = weight * shrink + tl.sum(share, 0)
        factor = share * inverse if NORMED else share
        total = total * shrink + tl.sum(factor[:, None] * wide, 0)
        top = grown
    tl.store(x + token * x_row + channel, (total / weight).to(x.dtype.element_ty), mask=inside)
    tl.store(p + token * sources + every, tl.exp(scores - top) / weight, mask=every < sources)


@triton.jit
def _extend(
    h,
    y,
    out,
    width,
    h_row,
    h_source,
    y_row,
    out_row,
    out_source,
    SOURCES: tl.constexpr,
    OPENS: tl.constexpr,
    BC: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    mask = channel < width
    new = tl.load(y + token * y_row + channel, mask=mask, other=0.0)
    for s in tl.static_range(SOURCES):
        value = tl.load(h + token * h_row + s * h_source + channel, mask=mask, other=0.0)
        if not OPENS and s == SOURCES - 1:
            value = (value.to(tl.float32) + new.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(out + token * out_row + s * out_source + channel, value, mask=mask)
    if OPENS:
        tl.store(out + token * out_row + SOURCES * out_source + channel, new.to(out.dtype.element_ty), mask=mask)


def bucket(tokens: int, sources: int, width: int) -> tuple[int, ...]:
    return size_bucket(tokens), size_bucket(sources), width


def read(
    h: Tensor,  # [N, sources, H]; a view of a buffer with room for more sources is fine
    query: Tensor,  # [H]
    key_weight: Tensor | None,  # [H]
    *,
    norm_eps: float,
    scale: float,
    normed: bool,
    out: tuple[Tensor, Tensor],  # x [N, H], probabilities [N, sources] float32
    y: Tensor | None = None,  # [N, H]
    opens: bool = False,
    launch: dict[str, int] | None = None,
) -> None:
    """x = sum_l p_l v_l. With `y` first, in place, h[:, -1] += y, or with `opens` h[:, -1] = y, of which x is made.

    Raises ContractError before the launch.
    """
    tokens, sources, width = h.shape
    require_tensor(KERNEL, "h", h, (None, None, None), FLOATS)
    require(1 <= width <= MAX_WIDTH, KERNEL, f"a width of 1 to {MAX_WIDTH}, not {width}")
    require(1 <= sources <= MAX_SOURCES, KERNEL, f"1 to {MAX_SOURCES} sources, not {sources}")
    require_tensor(KERNEL, "query", query, (width,), FLOATS)
    if key_weight is not None:
        require_tensor(KERNEL, "key_weight", key_weight, (width,), FLOATS)
    if y is not None:
        require_tensor(KERNEL, "y", y, (tokens, width), FLOATS)
    require_tensor(KERNEL, "x", out[0], (tokens, width), (h.dtype,))
    require_tensor(KERNEL, "probabilities", out[1], (tokens, sources), (torch.float32,))
    require(out[1].is_contiguous(), KERNEL, "probabilities contiguous")
    if tokens == 0:
        return
    chosen = launch or dict(SPACE.config(bucket(tokens, sources, width)))
    block = next_power_of_2(width)
    held = min(chosen["BL"], next_power_of_2(sources), max(1, _HELD // block))
    # Where threads outnumber elements several hold the same one, and one may read what another has already added to.
    warps = min(chosen["warps"], max(1, held * block // 32))
    _read[(tokens,)](
        h,
        h if y is None else y,
        query,
        query if key_weight is None else key_weight,
        out[0],
        out[1],
        sources,
        width,
        h.stride(0),
        h.stride(1),
        0 if y is None else y.stride(0),
        out[0].stride(0),
        norm_eps,
        scale,
        WEIGHTED=key_weight is not None,
        NORMED=normed,
        ADD=y is not None,
        OPENS=opens,
        ALL=next_power_of_2(sources),
        BL=held,
        BH=block,
        num_warps=warps,
    )


def extend(h: Tensor, y: Tensor, *, opens: bool, out: Tensor) -> None:
    """out [N, sources (+ 1), H] = h with y added to its last source, or behind it. Raises ContractError before."""
    tokens, sources, width = h.shape
    require_tensor(KERNEL, "h", h, (None, None, None), FLOATS)
    require(1 <= sources <= MAX_SOURCES, KERNEL, f"1 to {MAX_SOURCES} sources, not {sources}")
    require_tensor(KERNEL, "y", y, (tokens, width), FLOATS)
    require_tensor(KERNEL, "out", out, (tokens, sources + opens, width), (h.dtype,))
    if tokens == 0:
        return
    _extend[(tokens, triton.cdiv(width, 1024))](
        h,
        y,
        out,
        width,
        h.stride(0),
        h.stride(1),
        y.stride(0),
        out.stride(0),
        out.stride(1),
        SOURCES=sources,
        OPENS=opens,
        BC=1024,
        num_warps=4,
    )
