# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Gated hyper-connections: read the streams through low-rank gates without writing the normed streams or the gates.

n_s = (1 + w_s) h_s r_s with r_s the inverse RMS of stream s: r_s is one number per token and stream, so the products
with `down` and `inject` go over (1 + w) h, and are scaled when they are added up. Formulas: gated_streams.py beside
this file (transformers Qwen4ExpTextGatedResidual). Three launches, for slices of tokens that stay in L2:

    _project   per stream (and part of it) the products with down and inject, and |h_s|^2
    _combine   the bottleneck silu(down n / S), r_s, and the injection weights
    _gate      x = mean_s sigmoid(up_s bottleneck) n_s

Both products are ours: as cuBLAS calls they would need n [N, S * H] and the gates [N, S * H] in memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Config, Space, size_bucket

KERNEL = "residual_mix/triton (gated_streams)"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FEW = 512
MAX_STREAMS = 8
MAX_RANK = 256
SHARED_BYTES = 160 * 1024

# BM x BC: tile of the projection, PARTS: programs per stream; GM x GC: tile of the gates, BLOCKS: tiles per program.
FEW_SPACE = Space(
    "residual_mix.gated_few",
    __file__,
    tuple(
        {"BM": 16, "BC": 64, "PARTS": parts, "GM": 16, "GC": gc, "BLOCKS": 1, "SLICE": 1 << 20, "warps": warps}
        for parts, gc, warps in ((8, 64, 4), (16, 64, 4), (8, 32, 4), (16, 32, 4), (32, 32, 4), (8, 64, 8))
    ),
)
MANY_SPACE = Space(
    "residual_mix.gated_many",
    __file__,
    tuple(
        {"BM": bm, "BC": bc, "PARTS": parts, "GM": gm, "GC": gc, "BLOCKS": blocks, "SLICE": size, "warps": warps}
        for bm, bc, parts, gm, gc, blocks, size, warps in (
            (64, 64, 1, 64, 64, 4, 2048, 4),
            (64, 64, 1, 64, 64, 4, 1 << 20, 4),
            (64, 64, 2, 64, 64, 4, 2048, 4),
            (64, 64, 1, 64, 128, 4, 2048, 8),
            (64, 64, 2, 64, 128, 2, 2048, 8),
            (128, 64, 2, 128, 64, 4, 2048, 8),
            (128, 64, 1, 64, 64, 8, 1 << 20, 8),
            (64, 128, 1, 64, 64, 2, 2048, 8),
        )
    ),
)


@triton.jit
def _project(
    h,
    norm,
    down,
    inject,
    partial,
    tokens,
    width,
    h_row,
    h_stream,
    down_row,
    inject_row,
    RANK: tl.constexpr,
    RP: tl.constexpr,
    STREAMS: tl.constexpr,
    SP: tl.constexpr,
    INJECT: tl.constexpr,
    PARTS: tl.constexpr,
    DOT: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    """partial [STREAMS * PARTS, tokens, RP + SP]: RANK products, padding, STREAMS injections, then |h_s|^2."""
    token = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    live = token < tokens
    member = tl.program_id(1)
    stream = member // PARTS
    per_part = tl.cdiv(tl.cdiv(width, BC), PARTS)
    first = (member % PARTS) * per_part
    rank = tl.arange(0, RP)
    target = tl.arange(0, SP)
    products = tl.zeros([BM, RP], tl.float32)
    injected = tl.zeros([BM, SP], tl.float32)
    squares = tl.zeros([BM], tl.float32)
    for chunk in range(first, first + per_part):
        channel = chunk * BC + tl.arange(0, BC)
        inside = channel < width
        at = token[:, None] * h_row + stream * h_stream + channel[None, :]
        value = tl.load(h + at, mask=live[:, None] & inside[None, :], other=0.0).to(tl.float32)
        squares += tl.sum(value * value, 1)
        column = stream * width + channel
        weighted = value * (1.0 + tl.load(norm + column, mask=inside, other=0.0).to(tl.float32))[None, :]
        operand = weighted.to(DOT)
        at = rank[None, :] * down_row + column[:, None]
        w = tl.load(down + at, mask=(rank < RANK)[None, :] & inside[:, None], other=0.0)
        products = tl.dot(operand, w.to(DOT), products, input_precision="ieee")
        if INJECT:
            at = target[None, :] * inject_row + column[:, None]
            w = tl.load(inject + at, mask=(target < STREAMS)[None, :] & inside[:, None], other=0.0)
            injected = tl.dot(operand, w.to(DOT), injected, input_precision="ieee")
    base = partial + (member * tokens + token)[:, None] * (RP + SP)
    tl.store(base + rank[None, :], products, mask=live[:, None])
    tail = tl.where(target[None, :] == STREAMS, squares[:, None], injected)
    tl.store(base + RP + target[None, :], tail, mask=live[:, None])


@triton.jit
def _combine(
    partial,
    bottleneck,
    inverse,
    mix,
    tokens,
    width,
    eps,
    RANK: tl.constexpr,
    RP: tl.constexpr,
    STREAMS: tl.constexpr,
    SP: tl.constexpr,
    INJECT: tl.constexpr,
    PARTS: tl.constexpr,
    BT: tl.constexpr,
):
    """Adds the parts up: bottleneck [tokens, RP], inverse [tokens, STREAMS], mix [tokens, STREAMS]."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    live = token < tokens
    rank = tl.arange(0, RP)
    target = tl.arange(0, SP)
    inner = tl.zeros([BT, RP], tl.float32)
    injected = tl.zeros([BT, SP], tl.float32)
    for s in tl.static_range(STREAMS):
        products = tl.zeros([BT, RP], tl.float32)
        tail = tl.zeros([BT, SP], tl.float32)
        for part in range(PARTS):
            base = partial + ((s * PARTS + part) * tokens + token)[:, None] * (RP + SP)
            products += tl.load(base + rank[None, :], mask=live[:, None], other=0.0)
            tail += tl.load(base + RP + target[None, :], mask=live[:, None], other=0.0)
        squares = tl.sum(tl.where(target[None, :] == STREAMS, tail, 0.0), 1)
        r = tl.rsqrt(squares / width + eps)
        tl.store(inverse + token * STREAMS + s, r, mask=live)
        inner += products * r[:, None]
        injected += tail * r[:, None]
    inner = inner / STREAMS
    inner = inner * tl.sigmoid(inner)
    tl.store(
        bottleneck + token[:, None] * RP + rank[None, :], inner.to(bottleneck.dtype.element_ty), mask=live[:, None]
    )
    if INJECT:
        gate = 2.0 * tl.sigmoid(injected / STREAMS)
        kept = live[:, None] & (target < STREAMS)[None, :]
        tl.store(mix + token[:, None] * STREAMS + target[None, :], gate.to(mix.dtype.element_ty), mask=kept)


@triton.jit
def _gate(
    h,
    norm,
    up,
    bottleneck,
    inverse,
    x,
    tokens,
    width,
    h_row,
    h_stream,
    up_row,
    x_row,
    RANK: tl.constexpr,
    RP: tl.constexpr,
    STREAMS: tl.constexpr,
    BLOCKS: tl.constexpr,
    DOT: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    live = token < tokens
    rank = tl.arange(0, RP)
    inner = tl.load(bottleneck + token[:, None] * RP + rank[None, :], mask=live[:, None], other=0.0).to(DOT)
    for block in range(tl.program_id(1) * BLOCKS, (tl.program_id(1) + 1) * BLOCKS):
        channel = block * BC + tl.arange(0, BC)
        inside = channel < width
        mask = live[:, None] & inside[None, :]
        total = tl.zeros([BM, BC], tl.float32)
        for s in tl.static_range(STREAMS):
            column = s * width + channel
            at = column[None, :].to(tl.int64) * up_row + rank[:, None]
            w = tl.load(up + at, mask=(rank < RANK)[:, None] & inside[None, :], other=0.0)
            gate = tl.sigmoid(tl.dot(inner, w.to(DOT), input_precision="ieee"))
            r = tl.load(inverse + token * STREAMS + s, mask=live, other=0.0)
            at = token[:, None] * h_row + s * h_stream + channel[None, :]
            value = tl.load(h + at, mask=mask, other=0.0).to(tl.float32) * r[:, None]
            value = value * (1.0 + tl.load(norm + column, mask=inside, other=0.0).to(tl.float32))[None, :]
            total += gate * value
        tl.store(x + token[:, None] * x_row + channel[None, :], (total / STREAMS).to(x.dtype.element_ty), mask=mask)


@triton.jit
def _inject(
    h,
    y,
    mix,
    out,
    tokens,
    width,
    h_row,
    h_stream,
    y_row,
    out_row,
    out_stream,
    STREAMS: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    live = token < tokens
    mask = live[:, None] & (channel < width)[None, :]
    added = tl.load(y + token[:, None] * y_row + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    for s in tl.static_range(STREAMS):
        gate = tl.load(mix + token * STREAMS + s, mask=live, other=0.0).to(tl.float32)
        value = tl.load(h + token[:, None] * h_row + s * h_stream + channel[None, :], mask=mask, other=0.0)
        result = value.to(tl.float32) + gate[:, None] * added
        at = token[:, None] * out_row + s * out_stream + channel[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)


def bucket(tokens: int, streams: int, width: int, rank: int) -> tuple[int, ...]:
    return size_bucket(tokens), streams, width, rank


def config(tokens: int, streams: int, width: int, rank: int) -> dict[str, int]:
    """The launch for this many tokens."""
    return fitted((FEW_SPACE if tokens <= FEW else MANY_SPACE).config(bucket(tokens, streams, width, rank)), width)


def fitted(chosen: Config, width: int) -> dict[str, int]:
    """A configuration without programs that would find no channels."""
    return dict(chosen) | {"PARTS": min(chosen["PARTS"], triton.cdiv(width, chosen["BC"]))}


def _narrowed(chosen: Config, streams: int, padded: int, tail: int, itemsize: int) -> dict[str, int]:
    """A configuration whose buffers fit into shared memory: of _project two tiles each of h and the weights, of _gate
    two for every stream."""
    project, gate = chosen["BC"], chosen["GC"]
    while project > 16 and 2 * project * (chosen["BM"] + padded + tail) * itemsize > SHARED_BYTES:
        project //= 2
    while gate > 16 and 2 * streams * gate * (chosen["GM"] + padded) * itemsize > SHARED_BYTES:
        gate //= 2
    return dict(chosen) | {"BC": project, "GC": gate}


def workspace(h: Tensor, rank: int, *, launch: dict[str, int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Scratch of one launch: partial sums (float32), bottleneck (dtype of h), inverse RMS (float32)."""
    tokens, streams, width = h.shape
    chosen = launch or config(tokens, streams, width, rank)
    rows, padded, tail = _sizes(tokens, streams, rank, chosen)
    sums = streams * chosen["PARTS"] * rows * (padded + tail)
    return (
        torch.empty(sums, dtype=torch.float32, device=h.device),
        torch.empty(rows * padded, dtype=h.dtype, device=h.device),
        torch.empty(rows * streams, dtype=torch.float32, device=h.device),
    )


def read(
    h: Tensor,  # [N, S, H]
    norm: Tensor,  # [S * H], one-plus
    down: Tensor,  # [rank, S * H]
    up: Tensor,  # [S * H, rank]
    inject: Tensor | None,  # [S, S * H]
    *,
    norm_eps: float,
    out: tuple[Tensor, Tensor | None],  # x [N, H]; with `inject` the weights [N, S]
    scratch: tuple[Tensor, Tensor, Tensor],  # from workspace(h, rank)
    launch: dict[str, int] | None = None,
) -> None:
    """x and, with `inject`, how much of the branch's output each stream takes. Raises ContractError before."""
    tokens, streams, width = h.shape
    rank = down.shape[0]
    _require_streams(h)
    require(1 <= rank <= MAX_RANK, KERNEL, f"a rank of 1 to {MAX_RANK}, not {rank}")
    require_tensor(KERNEL, "norm", norm, (streams * width,), FLOATS)
    require_tensor(KERNEL, "down", down, (rank, streams * width), FLOATS)
    require_tensor(KERNEL, "up", up, (streams * width, rank), FLOATS)
    require_tensor(KERNEL, "x", out[0], (tokens, width), (h.dtype,))
    require((inject is None) == (out[1] is None), KERNEL, "an output for the injection weights if it makes them")
    if inject is not None and out[1] is not None:
        require_tensor(KERNEL, "inject", inject, (streams, streams * width), FLOATS)
        require_tensor(KERNEL, "mix", out[1], (tokens, streams), FLOATS)
        require(out[1].is_contiguous(), KERNEL, "mix contiguous")
    chosen = launch or config(tokens, streams, width, rank)
    rows, padded, tail = _sizes(tokens, streams, rank, chosen)
    need = (streams * chosen["PARTS"] * rows * (padded + tail), rows * padded, rows * streams)
    require(all(s.numel() >= n for s, n in zip(scratch, need, strict=True)), KERNEL, "scratch from workspace()")
    partial, bottleneck, inverse = scratch
    dot = _dot(h, down)
    chosen = _narrowed(chosen, streams, padded, tail, 2 if dot == tl.bfloat16 else 4)
    shared: dict[str, Any] = {"RANK": rank, "RP": padded, "STREAMS": streams}
    for start in range(0, tokens, max(rows, 1)):
        some = slice(start, min(start + rows, tokens))
        part, x = h[some], out[0][some]
        mix = bottleneck if out[1] is None else out[1][some]
        n = part.shape[0]
        _project[(triton.cdiv(n, chosen["BM"]), streams * chosen["PARTS"])](
            part,
            norm,
            down,
            down if inject is None else inject,
            partial,
            n,
            width,
            part.stride(0),
            part.stride(1),
            down.stride(0),
            0 if inject is None else inject.stride(0),
            SP=tail,
            INJECT=inject is not None,
            PARTS=chosen["PARTS"],
            DOT=dot,
            BM=chosen["BM"],
            BC=chosen["BC"],
            num_warps=chosen["warps"],
            num_stages=3,
            **shared,
        )
        _combine[(triton.cdiv(n, 4),)](
            partial,
            bottleneck,
            inverse,
            mix,
            n,
            width,
            norm_eps,
            SP=tail,
            INJECT=inject is not None,
            PARTS=chosen["PARTS"],
            BT=4,
            num_warps=4,
            **shared,
        )
        _gate[(triton.cdiv(n, chosen["GM"]), triton.cdiv(width, chosen["GC"] * chosen["BLOCKS"]))](
            part,
            norm,
            up,
            bottleneck,
            inverse,
            x,
            n,
            width,
            part.stride(0),
            part.stride(1),
            up.stride(0),
            x.stride(0),
            BLOCKS=chosen["BLOCKS"],
            DOT=_dot(bottleneck, up),
            BM=chosen["GM"],
            BC=chosen["GC"],
            num_warps=chosen["warps"],
            num_stages=2,
            **shared,
        )


def write(h: Tensor, y: Tensor, mix: Tensor, *, out: Tensor) -> None:
    """out_s = h_s + mix_s y. h and out [N, S, H] (out may be h), y [N, H], mix [N, S]."""
    tokens, streams, width = h.shape
    _require_streams(h)
    require_tensor(KERNEL, "out", out, (tokens, streams, width), (h.dtype,))
    require_tensor(KERNEL, "y", y, (tokens, width), FLOATS)
    require_tensor(KERNEL, "mix", mix, (tokens, streams), FLOATS)
    require(mix.is_contiguous(), KERNEL, "mix contiguous")
    if tokens == 0:
        return
    _inject[(triton.cdiv(tokens, 2), triton.cdiv(width, 512))](
        h,
        y,
        mix,
        out,
        tokens,
        width,
        h.stride(0),
        h.stride(1),
        y.stride(0),
        out.stride(0),
        out.stride(1),
        STREAMS=streams,
        BT=2,
        BC=512,
        num_warps=4,
    )


def _sizes(tokens: int, streams: int, rank: int, chosen: dict[str, int]) -> tuple[int, int, int]:
    """(tokens of a slice, padded rank, columns behind it for the injections and the sum of squares)."""
    return min(chosen["SLICE"], tokens), max(16, next_power_of_2(rank)), max(16, next_power_of_2(streams + 1))


def _dot(x: Tensor, weight: Tensor) -> Any:
    """What the matrix unit multiplies. float16 could not hold (1 + w) h of streams that no norm has made small."""
    exact = x.dtype == weight.dtype == torch.bfloat16
    return tl.bfloat16 if exact else tl.float32


def _require_streams(h: Tensor) -> None:
    require_tensor(KERNEL, "h", h, (None, None, None), FLOATS)
    require(1 <= h.shape[1] <= MAX_STREAMS, KERNEL, f"1 to {MAX_STREAMS} streams, not {h.shape[1]}")
