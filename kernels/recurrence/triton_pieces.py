# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What the recurrent decode kernel does before and after the state: short convolution, decay gate, gated output norm.

Each piece is optional at compile time. A pointer that a variant does not use is some tensor that the launch has anyway.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import INTERPRETED, next_power_of_2, require, require_tensor
from day0.kernels.recurrence.schema import RecurrenceAttributes

KERNEL = "recurrence.decode"
ONE_BY_ONE = tl.constexpr(INTERPRETED)
ACTIVATIONS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class ShortConv:
    """The causal short convolution in front of q, k and v: its C channels hold q, k and v from `starts` on.

    y_t = act(bias + sum_j weight_j x_{t - K + 1 + j}); `window` [slots, C, K - 1] holds the last inputs, oldest first,
    and is updated in place.
    """

    weight: Tensor  # [C, K]
    window: Tensor
    starts: tuple[int, int, int]
    bias: Tensor | None = None  # [C]
    activation: Literal["none", "silu"] = "silu"


@dataclass(frozen=True)
class OutputNorm:
    """RMS norm of each head's output over its Dv channels, and its gate.

    y = act(gate) * w * o / rms(o), or w * (o act(gate)) / rms(o act(gate)) with `gate_order` "before_norm".
    """

    eps: float
    weight: Tensor | None = None  # [Dv]
    one_plus: bool = False  # the weight is 1 + `weight`
    gate: Tensor | None = None  # [N, Hv * Dv]
    activation: Literal["none", "silu", "sigmoid"] = "none"
    gate_order: Literal["after_norm", "before_norm"] = "after_norm"


@triton.jit
def softplus(x):
    """log(1 + exp(x)), with the rounding of 1 + y taken out of log(1 + y) so that small results keep their digits."""
    y = tl.exp(-tl.abs(x))
    u = 1.0 + y
    rounded = tl.where(u == 1.0, 1.0, u - 1.0)
    return tl.maximum(x, 0.0) + tl.where(u == 1.0, y, tl.log(u) * (y / rounded))


@triton.jit
def activate(x, NAME: tl.constexpr):
    if NAME == "silu":
        x = x * tl.sigmoid(x)
    elif NAME == "sigmoid":
        x = tl.sigmoid(x)
    return x


@triton.jit
def convolve(
    x, row_stride, start, row, context, window, weight, bias, channels, known,
    TAPS: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """The convolution at one token, float32 [channels].

    `x` points to the first channel of the port's row 0, `window`, `weight` and `bias` to the same channel. A vector for
    each tap: in a block of channels and taps, several threads would share a channel, and each do all that follows.
    """
    values = tl.zeros(channels.shape, tl.float32)
    if BIAS:
        values += tl.load(bias + channels, mask=known, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        at = row - start - (TAPS - 1) + tap  # among the step's tokens; before them: in the window
        new = x + (start + at) * row_stride + channels
        old = window + channels * (TAPS - 1) + (TAPS - 1 + at)
        inputs = tl.load(tl.where(at >= 0, new, old), mask=known, other=0.0).to(tl.float32)
        # A new sequence sees zeros in its window.
        inputs = tl.where(at >= tl.where(context > 0, 1 - TAPS, 0), inputs, 0.0)
        values += tl.load(weight + channels * TAPS + tap, mask=known, other=0.0).to(tl.float32) * inputs
    return activate(values, ACTIVATION)


@triton.jit
def push(x, row_stride, start, row, context, window, channels, known, TAPS: tl.constexpr, TAPS_BLOCK: tl.constexpr):
    """Moves a window past the token `row`, the sequence's last; the program has read all that it wants of it."""
    kept = tl.arange(0, TAPS_BLOCK)[None, :]
    at = row - start - (TAPS - 2) + kept
    new = x + (start + at) * row_stride + channels[:, None]
    old = window + channels[:, None] * (TAPS - 1) + (TAPS - 1 + at)
    is_kept = known[:, None] & (kept < TAPS - 1)
    seen = is_kept & (at >= tl.where(context > 0, 1 - TAPS, 0))
    inputs = tl.load(tl.where(at >= 0, new, old), mask=seen, other=0.0)
    # Threads read what others write.
    tl.debug_barrier()
    tl.store(window + channels[:, None] * (TAPS - 1) + kept, inputs, mask=is_kept)


@triton.jit
def _add(x0, x1, x2, y0, y1, y2):
    return x0 + y0, x1 + y1, x2 + y2


@triton.jit
def inner_products(keys, queries):
    """k . k, q . q and k . q: in one reduction, so that the program's warps wait for each other once."""
    # Interpreted, a reduction by a function of ours adds one number after the other, which rounds more than a tree.
    if ONE_BY_ONE:
        return tl.sum(keys * keys, 0), tl.sum(queries * queries, 0), tl.sum(keys * queries, 0)
    return tl.reduce((keys * keys, queries * queries, keys * queries), 0, _add)


@triton.jit
def read_twice(s, keys, queries):
    """k^T S and q^T S, in one reduction."""
    both = tl.sum(tl.join(s * keys[:, None, None], s * queries[:, None, None]), 0)
    return tl.split(both)


@triton.jit
def arrive(ticket, PROGRAMS: tl.constexpr):
    """Whether the last of PROGRAMS has come: it sees what the others wrote, may overwrite what they read, and finds
    their ticket back at zero."""
    # Threads of this program too: what one of them writes next, the others have read.
    tl.debug_barrier()
    last = True
    if PROGRAMS > 1:
        last = tl.atomic_add(ticket, 1, sem="acq_rel") == PROGRAMS - 1
        if last:
            tl.store(ticket, 0)
    return last


@triton.jit
def normalise(o, z, weight, eps, DIM: tl.constexpr, WEIGHT: tl.constexpr, GATE: tl.constexpr, GATE_FIRST: tl.constexpr):
    """The gated output norm (`OutputNorm`) of one head, all blocks float32 of one shape, zeros behind DIM."""
    if GATE != "none" and GATE_FIRST:
        o *= activate(z, GATE)
    o *= tl.rsqrt(tl.sum(o * o) / DIM + eps)
    if WEIGHT != "none":
        o *= 1.0 + weight if WEIGHT == "one_plus" else weight
    if GATE != "none" and not GATE_FIRST:
        o *= activate(z, GATE)
    return o


@triton.jit
def load_norm(gate, weight, columns, known, WEIGHT: tl.constexpr, GATE: tl.constexpr):
    """What `normalise` takes beside the output, zeros where there is none; `gate` points to the head's first column."""
    z = tl.zeros(columns.shape, tl.float32)
    w = tl.zeros(columns.shape, tl.float32)
    if GATE != "none":
        z = tl.load(gate + columns, mask=known, other=0.0).to(tl.float32)
    if WEIGHT != "none":
        w = tl.load(weight + columns, mask=known, other=0.0).to(tl.float32)
    return z, w


@triton.jit
def load_decay(
    decay, row_stride, row, A_log, dt_bias, head, channels, known,
    DECAY: tl.constexpr, FORM: tl.constexpr, KEY_DIM: tl.constexpr,
):  # fmt: skip
    """What one token's decay of a head is made of: its projection and the bias, float32 [channels], and log A, a
    number; zeros where there is none."""
    f = tl.zeros(channels.shape, tl.float32)
    log_rate = 0.0
    if DECAY == "per_channel" or DECAY == "per_head":
        at = head * KEY_DIM + channels if DECAY == "per_channel" else head + channels * 0
        f = tl.load(decay + row * row_stride + at, mask=known, other=0.0).to(tl.float32)
        if FORM != "given":
            f += tl.load(dt_bias + at, mask=known, other=0.0).to(tl.float32)
            log_rate = tl.load(A_log + head).to(tl.float32)
    return f, log_rate


@triton.jit
def log_decay(
    f, log_rate, head, lower_bound, slope_scale, step_min, step_max,
    DECAY: tl.constexpr, FORM: tl.constexpr, VALUE_HEADS: tl.constexpr,
):  # fmt: skip
    """One token's log decay of a head, and the time step that multiplies its value, both float32 [channels]."""
    steps = tl.full(f.shape, 1.0, tl.float32)
    g = f
    if DECAY == "constant":
        g -= slope_scale * tl.exp2(-8.0 * (head + 1).to(tl.float32) / VALUE_HEADS)
    elif DECAY != "none" and FORM != "given":
        rate = tl.exp(log_rate)
        if FORM == "bounded_sigmoid":
            g = lower_bound * tl.sigmoid(rate * f)
        elif FORM == "softplus":
            g = -rate * softplus(f)
        else:
            steps = tl.minimum(tl.maximum(softplus(f), step_min), step_max)
            g = -rate * steps
    return g, steps


def conv_arguments(a: RecurrenceAttributes, conv: ShortConv | None, q: Tensor) -> dict[str, Any]:
    """The kernel's arguments for the convolution."""
    if conv is None:
        return dict(
            window=q, conv_weight=q, conv_bias=q, window_slot=0, TAPS=0, TAPS_BLOCK=1, CONV_BIAS=False,
            CONV_ACTIVATION="none", Q_AT=0, K_AT=0, V_AT=0,
        )  # fmt: skip
    channels, taps = conv.weight.shape
    require_tensor(KERNEL, "conv.weight", conv.weight, (None, None), ACTIVATIONS)
    require(conv.weight.is_contiguous() and taps >= 2, KERNEL, "contiguous conv.weight with at least two taps")
    require_tensor(KERNEL, "conv.window", conv.window, (None, channels, taps - 1), (q.dtype,))
    require(conv.window[:1].is_contiguous(), KERNEL, "a window whose slots are contiguous")
    widths = (a.key_heads * a.key_dim, a.key_heads * a.key_dim, a.value_heads * a.value_dim)
    parts = sorted(zip(conv.starts, widths, strict=True))
    ends = [at + width for at, width in parts]
    apart = all(end <= at for end, (at, _) in zip(ends, parts[1:], strict=False))
    require(parts[0][0] >= 0 and ends[-1] <= channels and apart, KERNEL, "q, k and v apart within conv's channels")
    if conv.bias is not None:
        require_tensor(KERNEL, "conv.bias", conv.bias, (channels,), ACTIVATIONS)
    return dict(
        window=conv.window,
        conv_weight=conv.weight,
        conv_bias=q if conv.bias is None else conv.bias,
        window_slot=conv.window.stride(0),
        TAPS=taps,
        TAPS_BLOCK=next_power_of_2(taps - 1),
        CONV_BIAS=conv.bias is not None,
        CONV_ACTIVATION=conv.activation,
        Q_AT=conv.starts[0],
        K_AT=conv.starts[1],
        V_AT=conv.starts[2],
    )


def norm_arguments(a: RecurrenceAttributes, n: int, norm: OutputNorm | None, q: Tensor) -> dict[str, Any]:
    """The kernel's arguments for the output norm."""
    if norm is None:
        return dict(
            gate=q, norm_weight=q, gate_row=0, norm_eps=0.0, NORM=False, NORM_WEIGHT="none", GATE="none",
            GATE_FIRST=False,
        )  # fmt: skip
    require((norm.gate is None) == (norm.activation == "none"), KERNEL, "a gate where the norm has an activation")
    if norm.gate is not None:
        require_tensor(KERNEL, "norm.gate", norm.gate, (n, a.value_heads * a.value_dim), ACTIVATIONS)
    if norm.weight is not None:
        require_tensor(KERNEL, "norm.weight", norm.weight, (a.value_dim,), ACTIVATIONS)
    require(norm.weight is not None or not norm.one_plus, KERNEL, "norm.weight where the weight is one_plus")
    return dict(
        gate=q if norm.gate is None else norm.gate,
        norm_weight=q if norm.weight is None else norm.weight,
        gate_row=0 if norm.gate is None else norm.gate.stride(0),
        norm_eps=norm.eps,
        NORM=True,
        NORM_WEIGHT="none" if norm.weight is None else "one_plus" if norm.one_plus else "plain",
        GATE=norm.activation,
        GATE_FIRST=norm.gate_order == "before_norm",
    )
