"""Manifold-constrained hyper-connections: mix the streams, project them, and collapse them into the next input.

With f the flattened stream of a token, u = fn RMS(f) = (fn f) / rms(f): the projection and the sum of squares go over
the same channels, so a token's channels may be split among programs and their partial sums added in a fixed order.
Formulas: arXiv 2512.24880, as in mhc.py beside this file. Two launches, each of which fills the device:

    mix_and_project   h' = post(h, y, mix) (or h' = h), partial sums of fn h' and of |h'|^2
    gates_and_collapse   gates from the sums (Sinkhorn in one program per group of tokens), x = sum_i p_i h'_i

x needs gates of the whole token, so h' is read again: the last tokens first, which are still in L2. (One launch whose
last program collapses what its group has mixed takes longer: that program works alone.)
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Config, Space, size_bucket
from day0.kernels.residual_mix import triton_mhc_kernels
from day0.kernels.residual_mix.triton_mhc_kernels import gates_and_collapse, mix_and_project

KERNEL = "residual_mix/triton (mhc)"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FEW = 512  # tokens up to which the channels of a token are spread over many programs
MAX_STREAMS = 8
SHARED_BYTES = 160 * 1024

# BM x BC: tile of the projection; SPLITS (a power of 2): programs that share a token's channels;
# BT x BX: tile of the collapse; regs: registers of a thread at most (0: as the compiler likes).
FEW_SPACE = Space(
    "residual_mix.mhc_few",
    str(triton_mhc_kernels.__file__),
    tuple(
        {"BM": 16, "BC": bc, "SPLITS": splits, "BT": bt, "BX": bx, "warps": warps, "stages": 3, "regs": 0}
        for bc, splits, bt, bx, warps in (
            (64, 32, 2, 512, 4),
            (128, 32, 1, 1024, 8),
            (64, 64, 2, 512, 4),
            (64, 16, 2, 512, 4),
            (64, 32, 1, 1024, 4),
            (64, 64, 4, 256, 4),
        )
    ),
)
MANY_SPACE = Space(
    "residual_mix.mhc_many",
    str(triton_mhc_kernels.__file__),
    tuple(
        {"BM": 16, "BC": bc, "SPLITS": s, "BT": bt, "BX": bx, "warps": w, "stages": st, "regs": regs}
        for bc, s, bt, bx, w, st, regs in (
            (64, 4, 2, 1024, 4, 3, 128),
            (64, 2, 2, 1024, 4, 3, 128),
            (64, 4, 4, 512, 4, 3, 128),
            (64, 8, 2, 1024, 4, 3, 128),
            (64, 8, 4, 512, 4, 3, 128),
        )
    ),
)


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
    """Scratch for h [N, S, H]: partial sums, float32, read only where the same call wrote."""
    tokens, streams, width = h.shape
    chosen = launch or config(tokens, streams, width)
    size = chosen["SPLITS"] * tokens * padded_rows(streams)
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
    pad, splits = padded_rows(streams), chosen["SPLITS"]
    require(scratch.numel() >= splits * tokens * pad, KERNEL, "scratch from workspace()")
    if h_new is not None and written is not None:
        _require_written(h, written, h_new)
        require(h_new.data_ptr() != h.data_ptr() or tokens == 0, KERNEL, "a new stream apart from the old one")
    exact = h.dtype == fn.dtype and h.dtype != torch.float32
    dot = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[h.dtype] if exact else tl.float32
    chosen = _narrowed(chosen, streams, h.element_size() if exact else 4)
    if tokens == 0:
        return
    source = h if h_new is None else h_new
    shared: dict[str, Any] = dict(
        partial=scratch, base=base, scale=scale, x=out[0], out_gates=out[1], mixing=out[2], x_row=out[0].stride(0),
        norm_eps=norm_eps, mix_eps=mix_eps, iterations=iterations, SIDE=next_power_of_2(streams), BX=chosen["BX"],
    )  # fmt: skip
    _launch_mix(h, written, h_new, fn, scratch, chosen, dot)
    blocks = triton.cdiv(width, chosen["BX"]) + 1
    gates_and_collapse[(triton.cdiv(tokens, chosen["BT"]) * blocks,)](
        source, tokens=tokens, width=width, h_row=source.stride(0), h_stream=source.stride(1), STREAMS=streams,
        ROWS=rows, PAD=pad, SPLITS=splits, BT=chosen["BT"], BLOCKS=blocks, num_warps=4, **shared,
    )  # fmt: skip


def write(h: Tensor, y: Tensor, gates: Tensor, mixing: Tensor, *, out: Tensor) -> None:
    """out = post(h, y, gates, mixing); `out` [N, S, H] may be h. Raises ContractError before the launch."""
    _require_streams(h)
    _require_written(h, (y, gates, mixing), out)
    if h.shape[0]:
        chosen = {
            "BM": 4,
            "BC": 256,
            "SPLITS": max(1, triton.cdiv(h.shape[2], 256)),
            "warps": 4,
            "stages": 1,
            "regs": 0,
        }
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
    y, gates, mixing = written or (h, h, h)
    new = h if h_new is None else h_new
    tokens, streams, width = h.shape
    mix_and_project[(triton.cdiv(tokens, chosen["BM"]) * chosen["SPLITS"],)](
        h, y, gates, mixing, new, h if fn is None else fn, h if scratch is None else scratch, unit=1.0,
        tokens=tokens, width=width, h_row=h.stride(0), h_stream=h.stride(1), y_row=y.stride(0), new_row=new.stride(0),
        new_stream=new.stride(1), fn_row=0 if fn is None else fn.stride(0), STREAMS=streams, MIX=written is not None,
        PROJECT=fn is not None, ROWS=(2 + streams) * streams, PAD=padded_rows(streams), SPLITS=chosen["SPLITS"],
        DOT=dot, BM=chosen["BM"], BC=chosen["BC"], num_warps=chosen["warps"], num_stages=chosen["stages"],
        maxnreg=chosen["regs"] or None,
    )  # fmt: skip


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
