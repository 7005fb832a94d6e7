# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"
"""Manifold-constrained hyper-connections: mix the streams, project them, and collapse them into the next input.

With f the flattened stream of a token, u = fn RMS(f) = (fn f) / rms(f): the projection and the sum of squares go over
the same channels, so a token's channels may be split among programs and their partial sums added in a fixed order.
Formulas: arXiv 2512.24880, as in mhc.py beside this file. Two launches:

    _mix_and_project   h' = post(h, y, mix) (or h' = h), partial sums of fn h' and of |h'|^2
    _gates_and_collapse   gates from the sums (Sinkhorn in one program per group of tokens), x = sum_i p_i h'_i

x needs gates of the whole token, so h' is read again. Slices of tokens small enough for L2 go through both launches
one after the other, which keeps that second read off the device memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Config, Space, size_bucket

KERNEL = "residual_mix/triton (mhc)"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FEW = 512  # tokens up to which the channels of a token are spread over many programs
MAX_STREAMS = 8
SHARED_BYTES = 160 * 1024

# BM x BC: tile of the projection; SPLITS (a power of 2): programs that share a token's channels; BT x BX: tile of the
# collapse; SLICE: tokens that go through both launches before the next ones start.
FEW_SPACE = Space(
    "residual_mix.mhc_few",
    __file__,
    tuple(
        {"BM": 16, "BC": bc, "SPLITS": splits, "BT": bt, "BX": bx, "SLICE": 1 << 20, "warps": warps, "stages": 3}
        for bc, splits, bt, bx, warps in (
            (64, 32, 2, 512, 4),
            (128, 32, 1, 1024, 8),
            (64, 64, 2, 512, 4),
            (64, 16, 2, 512, 4),
            (64, 32, 1, 1024, 4),
            (64, 64, 4, 256, 4),
            (64, 32, 1, 512, 4),
            (128, 32, 2, 512, 8),
        )
    ),
)
MANY_SPACE = Space(
    "residual_mix.mhc_many",
    __file__,
    tuple(
        {"BM": bm, "BC": bc, "SPLITS": splits, "BT": 4, "BX": 512, "SLICE": size, "warps": warps, "stages": stages}
        for bm, bc, splits, size, warps, stages in (
            (16, 64, 4, 1024, 4, 2),
            (16, 64, 8, 1024, 4, 2),
            (16, 64, 4, 2048, 4, 2),
            (16, 64, 4, 1 << 20, 4, 2),
            (16, 64, 4, 1024, 4, 3),
            (32, 64, 8, 1024, 8, 2),
            (32, 64, 4, 2048, 8, 3),
        )
    ),
)


@triton.jit
def _mix_and_project(
    h,
    y,
    out_gates,
    mixing,
    h_new,
    fn,
    partial,
    tokens,
    width,
    h_row,
    h_stream,
    y_row,
    new_row,
    new_stream,
    fn_row,
    unit,
    STREAMS: tl.constexpr,
    MIX: tl.constexpr,
    PROJECT: tl.constexpr,
    ROWS: tl.constexpr,
    PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    DOT: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    """Tokens x (a split of the channels of every stream). partial [SPLITS, tokens, PAD]: ROWS products, then |h'|^2."""
    token = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    live = token < tokens
    split = tl.program_id(1)
    row = tl.arange(0, PAD)
    per_split = tl.cdiv(tl.cdiv(width, BC), SPLITS)
    products = tl.zeros([BM, PAD], tl.float32)
    squares = tl.zeros([BM], tl.float32)
    gates = ()
    mixes = ()
    if MIX:
        for i in tl.static_range(STREAMS):
            gates = gates + (tl.load(out_gates + token * STREAMS + i, mask=live, other=0.0)[:, None],)
        for e in tl.static_range(STREAMS * STREAMS):
            mixes = mixes + (tl.load(mixing + token * STREAMS * STREAMS + e, mask=live, other=0.0)[:, None],)
    for chunk in range(split * per_split, (split + 1) * per_split):
        channel = chunk * BC + tl.arange(0, BC)
        mask = live[:, None] & (channel < width)[None, :]
        streams = ()
        for j in tl.static_range(STREAMS):
            at = token[:, None] * h_row + j * h_stream + channel[None, :]
            streams = streams + (tl.load(h + at, mask=mask, other=0.0),)
        if MIX:
            # `unit` is 1 and no constant: without it the compiler mixes in the product's operand layout, which holds
            # every element in all warps (255 registers and spills instead of 130).
            added = tl.load(y + token[:, None] * y_row + channel[None, :], mask=mask, other=0.0).to(tl.float32) * unit
        for i in tl.static_range(STREAMS):
            if MIX:
                mixed = gates[i] * added
                for j in tl.static_range(STREAMS):
                    mixed += mixes[j * STREAMS + i] * streams[j].to(tl.float32)
                value = mixed.to(h_new.dtype.element_ty)
                tl.store(h_new + token[:, None] * new_row + i * new_stream + channel[None, :], value, mask=mask)
            else:
                value = streams[i]
            if PROJECT:
                at = row[None, :] * fn_row + i * width + channel[:, None]
                w = tl.load(fn + at, mask=(row < ROWS)[None, :] & (channel < width)[:, None], other=0.0)
                products = tl.dot(value.to(DOT), w.to(DOT), products, input_precision="ieee")
                squares += tl.sum(value.to(tl.float32) * value.to(tl.float32), 1)
    if PROJECT:
        result = tl.where(row[None, :] == ROWS, squares[:, None], products)
        at = (split * tokens + token)[:, None] * PAD + row[None, :]
        tl.store(partial + at, result, mask=live[:, None])


@triton.jit
def _normaliser(m, axis: tl.constexpr, eps):
    """m over its sums along an axis; padding, all zeros, stays zero also where eps is 0."""
    total = tl.sum(m, axis, keep_dims=True) + eps
    return m / tl.where(total == 0.0, 1.0, total)


@triton.jit
def _gates_and_collapse(
    h,
    partial,
    base,
    scale,
    x,
    out_gates,
    mixing,
    tokens,
    width,
    h_row,
    h_stream,
    x_row,
    norm_eps,
    mix_eps,
    iterations,
    STREAMS: tl.constexpr,
    SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    BT: tl.constexpr,
    BX: tl.constexpr,
):
    """Axis 1 of the grid: 0 makes the tokens' post gates and mixing matrices, the others collapse BX channels each."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    live = token < tokens
    part = tl.arange(0, SPLITS)
    sums = partial + (part[:, None] * tokens + token[None, :]) * PAD
    squares = tl.sum(tl.load(sums + ROWS, mask=live[None, :], other=0.0), 0)
    inverse = tl.rsqrt(squares / (STREAMS * width) + norm_eps)
    block = tl.program_id(1)
    if block == 0:
        post_scale = tl.load(scale + 1)
        for s in tl.static_range(STREAMS):
            post_u = tl.sum(tl.load(sums + STREAMS + s, mask=live[None, :], other=0.0), 0) * inverse
            post_gate = 2.0 * tl.sigmoid(post_u * post_scale + tl.load(base + STREAMS + s))
            tl.store(out_gates + token * STREAMS + s, post_gate, mask=live)
        i = tl.arange(0, SIDE)[None, :, None]
        j = tl.arange(0, SIDE)[None, None, :]
        real = (i < STREAMS) & (j < STREAMS)
        kept = live[:, None, None] & real
        mix_u = tl.zeros([BT, SIDE, SIDE], tl.float32)
        for k in range(SPLITS):
            entry = (k * tokens + token)[:, None, None] * PAD + 2 * STREAMS + i * STREAMS + j
            mix_u += tl.load(partial + entry, mask=kept, other=0.0)
        offset = tl.load(base + 2 * STREAMS + i * STREAMS + j, mask=real, other=0.0)
        logits = tl.where(real, mix_u * inverse[:, None, None] * tl.load(scale + 2) + offset, -float("inf"))
        top = tl.max(logits, 2, keep_dims=True)
        m = tl.where(real, tl.exp(logits - tl.where(top == -float("inf"), 0.0, top)), 0.0)
        m = tl.where(real, _normaliser(m, 2, 0.0) + mix_eps, 0.0)
        m = _normaliser(m, 1, mix_eps)
        for _ in range(iterations - 1):
            m = _normaliser(m, 2, mix_eps)
            m = _normaliser(m, 1, mix_eps)
        tl.store(mixing + token[:, None, None] * STREAMS * STREAMS + i * STREAMS + j, m, mask=kept)
    else:
        channel = (block - 1) * BX + tl.arange(0, BX)
        mask = live[:, None] & (channel < width)[None, :]
        pre_scale = tl.load(scale)
        total = tl.zeros([BT, BX], tl.float32)
        for s in tl.static_range(STREAMS):
            u = tl.sum(tl.load(sums + s, mask=live[None, :], other=0.0), 0) * inverse
            gate = tl.sigmoid(u * pre_scale + tl.load(base + s)) + mix_eps
            at = token[:, None] * h_row + s * h_stream + channel[None, :]
            total += gate[:, None] * tl.load(h + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(x + token[:, None] * x_row + channel[None, :], total.to(x.dtype.element_ty), mask=mask)


def config(tokens: int, streams: int, width: int) -> dict[str, int]:
    """The launch for this many tokens."""
    return fitted((FEW_SPACE if tokens <= FEW else MANY_SPACE).config(bucket(tokens, streams, width)), width)


def fitted(chosen: Config, width: int) -> dict[str, int]:
    """A configuration without programs that would find no channels."""
    splits = min(chosen["SPLITS"], next_power_of_2(triton.cdiv(width, chosen["BC"])))
    return dict(chosen) | {"SPLITS": splits}


def _narrowed(chosen: Config, streams: int, itemsize: int) -> dict[str, int]:
    """A configuration whose buffers fit into shared memory: tiles of all streams, of fn and of y."""
    width = chosen["BC"]
    column = streams * (chosen["BM"] + padded_rows(streams)) + chosen["BM"]
    while width > 16 and max(1, chosen["stages"] - 1) * width * column * itemsize > SHARED_BYTES:
        width //= 2
    return dict(chosen) | {"BC": width}


def bucket(tokens: int, streams: int, width: int) -> tuple[int, ...]:
    return size_bucket(tokens), streams, width


def padded_rows(streams: int) -> int:
    """Columns of the partial sums: the projection's rows and the sum of squares, as a matrix unit takes them."""
    return max(16, next_power_of_2((2 + streams) * streams + 1))


def workspace(h: Tensor, *, launch: dict[str, int] | None = None) -> Tensor:
    """Scratch for the partial sums of h [N, S, H], float32: read only where the same launch wrote."""
    tokens, streams, width = h.shape
    chosen = launch or config(tokens, streams, width)
    size = chosen["SPLITS"] * min(tokens, chosen["SLICE"]) * padded_rows(streams)
    return torch.empty(size, dtype=torch.float32, device=h.device)


def read(
    h: Tensor,  # [N, S, H]
    fn: Tensor,  # [(2 + S) * S, S * H]
    base: Tensor,  # [(2 + S) * S] float32
    scale: Tensor,  # [3] float32
    *,
    norm_eps: float,
    mix_eps: float,
    iterations: int,
    out: tuple[Tensor, Tensor, Tensor],  # x [N, H], post gates [N, S] float32, mixing matrices [N, S, S] float32
    scratch: Tensor,  # from workspace(h)
    written: tuple[Tensor, Tensor, Tensor] | None = None,  # y [N, H], gates and matrices of the branch before
    h_new: Tensor | None = None,  # like h, and apart from it; with `written`
    launch: dict[str, int] | None = None,
) -> None:
    """x and the next mix of h; with `written` first h_new = post(h, *written), of which x and the mix are then made.

    `out`'s gates may not be those in `written`. Raises ContractError before any launch.
    """
    tokens, streams, width = h.shape
    rows = (2 + streams) * streams
    _require_streams(h)
    require_tensor(KERNEL, "fn", fn, (rows, streams * width), FLOATS)
    for name, tensor, shape in (
        ("base", base, (rows,)),
        ("scale", scale, (3,)),
        ("post gates", out[1], (tokens, streams)),
        ("mixing", out[2], (tokens, streams, streams)),
    ):
        require_tensor(KERNEL, name, tensor, shape, (torch.float32,))
        require(tensor.is_contiguous(), KERNEL, f"{name} contiguous")
    require_tensor(KERNEL, "x", out[0], (tokens, width), (h.dtype,))
    require((written is None) == (h_new is None), KERNEL, "both `written` and `h_new`, or neither")
    chosen = launch or config(tokens, streams, width)
    pad, splits, size = padded_rows(streams), chosen["SPLITS"], min(chosen["SLICE"], max(tokens, 1))
    require(scratch.numel() >= splits * min(size, tokens) * pad, KERNEL, "scratch from workspace()")
    if h_new is not None and written is not None:
        _require_written(h, written, h_new)
        require(h_new.data_ptr() != h.data_ptr() or tokens == 0, KERNEL, "a new stream apart from the old one")
    exact = h.dtype == fn.dtype and h.dtype != torch.float32
    dot = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[h.dtype] if exact else tl.float32
    chosen = _narrowed(chosen, streams, h.element_size() if exact else 4)
    for start in range(0, tokens, size):
        some = slice(start, min(start + size, tokens))
        part = None if written is None else (written[0][some], written[1][some], written[2][some])
        new = None if h_new is None else h_new[some]
        _launch_mix(h[some], part, new, fn, scratch, chosen, dot)
        source = h[some] if new is None else new
        n = source.shape[0]
        _gates_and_collapse[(triton.cdiv(n, chosen["BT"]), triton.cdiv(width, chosen["BX"]) + 1)](
            source,
            scratch,
            base,
            scale,
            out[0][some],
            out[1][some],
            out[2][some],
            n,
            width,
            source.stride(0),
            source.stride(1),
            out[0].stride(0),
            norm_eps,
            mix_eps,
            iterations,
            STREAMS=streams,
            SIDE=next_power_of_2(streams),
            ROWS=rows,
            PAD=pad,
            SPLITS=splits,
            BT=chosen["BT"],
            BX=chosen["BX"],
            num_warps=4,
        )


def write(h: Tensor, y: Tensor, gates: Tensor, mixing: Tensor, *, out: Tensor) -> None:
    """out = post(h, y, gates, mixing); `out` [N, S, H] may be h. Raises ContractError before the launch."""
    _require_streams(h)
    _require_written(h, (y, gates, mixing), out)
    if h.shape[0]:
        chosen = {"BM": 4, "BC": 256, "SPLITS": max(1, triton.cdiv(h.shape[2], 256)), "warps": 4, "stages": 1}
        _launch_mix(h, (y, gates, mixing), out, None, None, chosen, tl.float32)


def _launch_mix(
    h: Tensor,
    written: tuple[Tensor, Tensor, Tensor] | None,
    h_new: Tensor | None,
    fn: Tensor | None,
    scratch: Tensor | None,
    chosen: dict[str, int],
    dot: Any,
) -> None:
    tokens, streams, width = h.shape
    y, gates, mixing = written or (h, h, h)
    new = h if h_new is None else h_new
    _mix_and_project[(triton.cdiv(tokens, chosen["BM"]), chosen["SPLITS"])](
        h,
        y,
        gates,
        mixing,
        new,
        h if fn is None else fn,
        h if scratch is None else scratch,
        tokens,
        width,
        h.stride(0),
        h.stride(1),
        y.stride(0),
        new.stride(0),
        new.stride(1),
        0 if fn is None else fn.stride(0),
        1.0,
        STREAMS=streams,
        MIX=written is not None,
        PROJECT=fn is not None,
        ROWS=(2 + streams) * streams,
        PAD=padded_rows(streams),
        SPLITS=chosen["SPLITS"],
        DOT=dot,
        BM=chosen["BM"],
        BC=chosen["BC"],
        num_warps=chosen["warps"],
        num_stages=chosen["stages"],
    )


def _require_streams(h: Tensor) -> None:
    require_tensor(KERNEL, "h", h, (None, None, None), FLOATS)
    require(1 <= h.shape[1] <= MAX_STREAMS, KERNEL, f"1 to {MAX_STREAMS} streams, not {h.shape[1]}")


def _require_written(h: Tensor, written: tuple[Tensor, Tensor, Tensor], h_new: Tensor) -> None:
    tokens, streams, width = h.shape
    require_tensor(KERNEL, "h_new", h_new, (tokens, streams, width), (h.dtype,))
    require_tensor(KERNEL, "y", written[0], (tokens, width), FLOATS)
    for name, tensor, shape in (
        ("the written gates", written[1], (tokens, streams)),
        ("the written mixing", written[2], (tokens, streams, streams)),
    ):
        require_tensor(KERNEL, name, tensor, shape, (torch.float32,))
        require(tensor.is_contiguous(), KERNEL, f"{name} contiguous")
