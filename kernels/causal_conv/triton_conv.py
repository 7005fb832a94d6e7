# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Depthwise causal short convolution over packed sequences, from and to their windows, in one launch.

    y_t = act(bias + sum_j weight_j x_{t - (K - 1 - j) d}),  the window standing for x before the step's tokens

A sequence's first tokens read its window, its last tokens become it: one program of a sequence does both, so that no
program writes what another still reads. All later tokens need no window and go by blocks of packed rows, wherever
sequences begin and end. Floor: every input read once, every output written once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.causal_conv.schema import CausalConvAttributes
from day0.kernels.common.triton_launch import INTERPRETED, next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Bucket, Config, Space, size_bucket
from day0.kernels.interface.batch import Batch

KERNEL = "causal_conv"
SPACE = Space(
    KERNEL,
    __file__,
    (
        {"tokens": 16, "channels": 256, "num_warps": 4},
        {"tokens": 32, "channels": 256, "num_warps": 4},
        {"tokens": 32, "channels": 256, "num_warps": 8},
        {"tokens": 64, "channels": 128, "num_warps": 4},
        {"tokens": 16, "channels": 512, "num_warps": 4},
        {"tokens": 16, "channels": 128, "num_warps": 2},
    ),
)
ACTIVATIONS = (torch.bfloat16, torch.float16, torch.float32)
MAX_WINDOW = 64


@triton.jit
def _finish(total, bias, channels, known, BIAS: tl.constexpr, SILU: tl.constexpr):
    if BIAS:
        total += tl.load(bias + channels, mask=known, other=0.0).to(tl.float32)
    if SILU:
        total *= tl.sigmoid(total)
    return total


@triton.jit
def _edge_of_sequence(
    x, weight, bias, window, out, cu_seqlens, context_lens, slots, accepted, x_row, out_row, window_slot, sequence,
    channels, known,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr, WINDOW_BLOCK: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr, LIMITED: tl.constexpr, OUTPUT: tl.constexpr, COMMIT: tl.constexpr,
):  # fmt: skip
    """The outputs that need the window, then the window's own update."""
    WINDOW: tl.constexpr = (TAPS - 1) * DILATION
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    if LIMITED:
        length = tl.minimum(length, tl.load(accepted + sequence))
    if length > 0:
        context = tl.load(context_lens + sequence)
        own = window + tl.load(slots + sequence).to(tl.int64) * window_slot + channels * WINDOW
        if OUTPUT:
            for t in range(0, tl.minimum(length, WINDOW)):
                total = tl.zeros([channels.shape[0]], tl.float32)
                for tap in tl.static_range(TAPS):
                    at = t - (TAPS - 1 - tap) * DILATION
                    new_channels = tl.where(at >= 0, CHANNELS, 0)
                    old_channels = tl.where(context > 0, CHANNELS, 0) - new_channels
                    new = tl.load(x + (start + at) * x_row + channels, mask=channels < new_channels, other=0.0)
                    old = tl.load(own + WINDOW + at, mask=channels < old_channels, other=0.0)
                    w = tl.load(weight + channels * TAPS + tap, mask=known, other=0.0).to(tl.float32)
                    total += w * tl.where(channels < new_channels, new, old.to(new.dtype)).to(tl.float32)
                total = _finish(total, bias, channels, known, BIAS, SILU)
                tl.store(out + (start + t) * out_row + channels, total.to(out.dtype.element_ty), mask=known)
        if COMMIT:
            columns = tl.arange(0, WINDOW_BLOCK)
            at = length - WINDOW + columns
            kept = known[:, None] & (columns < WINDOW)[None, :]
            new = tl.load(
                x + (start + at)[None, :] * x_row + channels[:, None], mask=kept & (at >= 0)[None, :], other=0.0
            )
            was_known = at < tl.where(context > 0, 0, -WINDOW)
            old = tl.load(own[:, None] + (WINDOW + at)[None, :], mask=kept & was_known[None, :], other=0.0)
            # Threads hold copies of a channel: all have to have read it before one writes.
            tl.debug_barrier()
            tl.store(own[:, None] + columns[None, :], tl.where((at >= 0)[None, :], new, old.to(new.dtype)), mask=kept)


@triton.jit
def _block_of_rows(
    x, weight, bias, out, cu_seqlens, x_row, out_row, sequences, first_row, channels, known,
    TAPS: tl.constexpr, DILATION: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
    BLOCK_T: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """The outputs of packed rows that are far enough behind the first token of their sequence to need no window."""
    rows = first_row.to(tl.int64) + tl.arange(0, BLOCK_T)
    sequence = tl.zeros([BLOCK_T], tl.int32)
    # The last sequence that starts at or before a row, bit by bit from the top.
    for bit in tl.static_range(SEARCH):
        probe = sequence + (1 << (SEARCH - 1 - bit))
        begins = tl.load(cu_seqlens + probe, mask=probe < sequences, other=2**62)
        sequence = tl.where(begins <= rows, probe, sequence)
    behind = rows - tl.load(cu_seqlens + sequence)
    mine = (rows < tl.load(cu_seqlens + sequences)) & (behind >= (TAPS - 1) * DILATION)
    inside = mine[:, None] & known[None, :]
    total = tl.zeros([BLOCK_T, channels.shape[0]], tl.float32)
    for tap in tl.static_range(TAPS):
        at = (rows - (TAPS - 1 - tap) * DILATION)[:, None] * x_row + channels[None, :]
        w = tl.load(weight + channels * TAPS + tap, mask=known, other=0.0).to(tl.float32)
        total += w[None, :] * tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    total = _finish(total, bias, channels[None, :], known[None, :], BIAS, SILU)
    tl.store(out + rows[:, None] * out_row + channels[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def conv_kernel(
    x, weight, bias, window, out, cu_seqlens, context_lens, slots, accepted, x_row, out_row, window_slot, sequences,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr, WINDOW_BLOCK: tl.constexpr, BIAS: tl.constexpr,
    SILU: tl.constexpr, LIMITED: tl.constexpr, OUTPUT: tl.constexpr, COMMIT: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Axis 0: a program for each sequence, then one for each block of rows; axis 1: blocks of channels."""
    program = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channels < CHANNELS
    if program < sequences:
        _edge_of_sequence(
            x, weight, bias, window, out, cu_seqlens, context_lens, slots, accepted, x_row, out_row, window_slot,
            program, channels, known, CHANNELS, TAPS, DILATION, WINDOW_BLOCK, BIAS, SILU, LIMITED, OUTPUT, COMMIT,
        )  # fmt: skip
    else:
        _block_of_rows(
            x, weight, bias, out, cu_seqlens, x_row, out_row, sequences, (program - sequences) * BLOCK_T, channels,
            known, TAPS, DILATION, BIAS, SILU, BLOCK_T, SEARCH,
        )  # fmt: skip


def bucket(a: CausalConvAttributes, tokens: int) -> Bucket:
    """Launches that share a tuned configuration."""
    return (size_bucket(tokens), a.channels, a.kernel_size)


def launch(
    a: CausalConvAttributes,
    x: Tensor,  # [N, channels]
    *,
    weight: Tensor,  # [channels, kernel_size]
    bias: Tensor | None = None,  # [channels]
    batch: Batch,
    window: Tensor,  # [slots, channels, window], updated in place where `commit`
    out: Tensor | None,  # [N, channels], written; None: only the window moves
    accepted: Tensor | None = None,  # [S], without `out`: the window moves past the first so many tokens only
    commit: bool = True,
    config: Config | None = None,
) -> None:
    """One launch. Rows past cu_seqlens[S] are not touched, and a sequence without tokens touches nothing.

    For speculation: `commit=False` over the drafted tokens, then `out=None` with `accepted` over the same inputs.
    Raises ContractError, before anything runs, on what the kernel cannot take.
    """
    n, sequences = x.shape[0], batch.sequences
    require(a.window <= MAX_WINDOW, KERNEL, f"a window of at most {MAX_WINDOW} inputs")
    require_tensor(KERNEL, "x", x, (n, a.channels), ACTIVATIONS)
    require_tensor(KERNEL, "weight", weight, (a.channels, a.kernel_size), ACTIVATIONS)
    require(weight.is_contiguous(), KERNEL, "a contiguous weight")
    require((bias is not None) == a.bias, KERNEL, "a bias" if a.bias else "no bias, as its attributes have none")
    if bias is not None:
        require_tensor(KERNEL, "bias", bias, (a.channels,), ACTIVATIONS)
    require_tensor(KERNEL, "window", window, (None, a.channels, a.window), (x.dtype,))
    require(window[:1].is_contiguous(), KERNEL, "a window whose slots are contiguous")
    require(x.is_cuda or INTERPRETED, KERNEL, "a CUDA device")
    require(out is None or accepted is None, KERNEL, "accepted without out")
    if out is not None:
        require_tensor(KERNEL, "out", out, (n, a.channels), ACTIVATIONS)
    if accepted is not None:
        require_tensor(KERNEL, "accepted", accepted, (sequences,), (torch.int64, torch.int32))
    if sequences == 0:
        return
    chosen = config or SPACE.config(bucket(a, n))
    block_c = min(chosen["channels"], next_power_of_2(a.channels))
    # No sequence of a decode step has more tokens than its first program takes.
    blocks = 0 if batch.phase == "decode" or out is None else triton.cdiv(n, chosen["tokens"])
    conv_kernel[(sequences + blocks, triton.cdiv(a.channels, block_c))](
        x,
        weight,
        weight if bias is None else bias,
        window,
        x if out is None else out,
        batch.cu_seqlens,
        batch.context_lens,
        batch.slots,
        batch.slots if accepted is None else accepted,
        x.stride(0),
        0 if out is None else out.stride(0),
        window.stride(0),
        sequences,
        CHANNELS=a.channels,
        TAPS=a.kernel_size,
        DILATION=a.dilation,
        WINDOW_BLOCK=next_power_of_2(a.window),
        BIAS=a.bias,
        SILU=a.activation == "silu",
        LIMITED=accepted is not None,
        OUTPUT=out is not None,
        COMMIT=commit,
        BLOCK_T=chosen["tokens"],
        BLOCK_C=block_c,
        SEARCH=(sequences - 1).bit_length(),
        num_warps=chosen["num_warps"],
    )
