"""The experts in Triton: every chosen expert's weights are read once for up to `block` of its rows.

h = act(gate x) * (up x) per choice, then down h, then the weighted sum over a token's choices in expert order. Weight
tiles are the left operand of the products and tokens the right one, so that a few tokens still make a full tile of
the tensor cores.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require_tensor
from day0.kernels.common.triton_tuning import Config, Space, size_bucket
from day0.kernels.moe.schema import MoeAttributes
from day0.kernels.moe.triton_route import Routing

UP = Space(
    "moe.up",
    __file__,
    (
        {"ROWS": 64, "DEPTH": 64, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "DEPTH": 128, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "DEPTH": 128, "num_warps": 4, "num_stages": 5},
        {"ROWS": 64, "DEPTH": 64, "num_warps": 4, "num_stages": 6},
        {"ROWS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 4},
        {"ROWS": 128, "DEPTH": 128, "num_warps": 8, "num_stages": 3},
    ),
)
DOWN = Space(
    "moe.down",
    __file__,
    (
        {"ROWS": 64, "DEPTH": 64, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "DEPTH": 128, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "DEPTH": 256, "num_warps": 4, "num_stages": 3},
        {"ROWS": 128, "DEPTH": 64, "num_warps": 4, "num_stages": 4},
        {"ROWS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 4},
        {"ROWS": 128, "DEPTH": 128, "num_warps": 8, "num_stages": 3},
    ),
)
ACTIVATIONS = ("silu", "gelu_tanh", "relu", "relu2")


def block_of(a: MoeAttributes, tokens: int) -> int:
    """Rows per block: about what an expert gets under even routing, between one tensor-core tile and 128."""
    return min(128, max(16, next_power_of_2(-(-tokens * a.top_k // a.experts))))


def bucket(a: MoeAttributes, tokens: int, block: int) -> tuple[int, ...]:
    """What a tuned configuration depends on."""
    return (a.width, a.hidden, block, size_bucket(min(tokens * a.top_k, a.experts)))


def up(
    a: MoeAttributes, x: Tensor, gate_up: Tensor, routing: Routing, out: Tensor, config: Config | None = None
) -> None:
    """out [N * k, hidden], rows in `routing`'s order = act(gate x) * (up x). gate_up: [experts, 2 * hidden, width].

    Raises ContractError on other shapes.
    """
    require_tensor("moe.up", "x", x, (None, a.width))
    require_tensor("moe.up", "gate_up", gate_up, (a.experts, 2 * a.hidden, a.width), (x.dtype,))
    require_tensor("moe.up", "out", out, (x.shape[0] * a.top_k, a.hidden), (x.dtype,))
    if x.shape[0] == 0:
        return
    chosen = dict(config or UP.config(bucket(a, x.shape[0], routing.block)))
    rows = chosen.pop("ROWS")
    _up[(routing.block_expert.shape[0], triton.cdiv(a.hidden, rows))](
        x, gate_up, out, routing.sorted_choices, routing.block_expert, routing.block_start, routing.block_end,
        x.stride(0), gate_up.stride(0), gate_up.stride(1), out.stride(0),
        K=a.top_k, HIDDEN=a.hidden, WIDTH=a.width, TOKENS=routing.block, ROWS=rows,
        CLAMP=a.clamp, ACTIVATION=ACTIVATIONS.index(a.activation), **chosen,
    )  # fmt: skip


def down(
    a: MoeAttributes, h: Tensor, weight: Tensor, routing: Routing, out: Tensor, config: Config | None = None
) -> None:
    """out [N * k, width] = down h per row, not yet weighted. weight: [experts, width, hidden].

    Raises ContractError on other shapes.
    """
    require_tensor("moe.down", "h", h, (None, a.hidden))
    require_tensor("moe.down", "down", weight, (a.experts, a.width, a.hidden), (h.dtype,))
    require_tensor("moe.down", "out", out, (h.shape[0], a.width), (h.dtype,))
    if h.shape[0] == 0:
        return
    chosen = dict(config or DOWN.config(bucket(a, h.shape[0] // a.top_k, routing.block)))
    rows = chosen.pop("ROWS")
    _down[(routing.block_expert.shape[0], triton.cdiv(a.width, rows))](
        h, weight, out, routing.block_expert, routing.block_start, routing.block_end,
        h.stride(0), weight.stride(0), weight.stride(1), out.stride(0),
        HIDDEN=a.hidden, WIDTH=a.width, TOKENS=routing.block, ROWS=rows, **chosen,
    )  # fmt: skip


def combine(a: MoeAttributes, rows: Tensor, routing: Routing, out: Tensor) -> None:
    """out [N, width] = sum over a token's choices of weight * rows, in float32 in expert order."""
    require_tensor("moe.combine", "out", out, (rows.shape[0] // a.top_k, a.width), (rows.dtype,))
    n = out.shape[0]
    if n == 0:
        return
    _combine[(n, triton.cdiv(a.width, 1024))](
        rows, routing.weights, routing.row_of, out, rows.stride(0), out.stride(0),
        K=a.top_k, WIDTH=a.width, BLOCK=1024, num_warps=4,
    )  # fmt: skip


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 0:
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == 1:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)  # sqrt(2 / pi)
        return x / (1.0 + tl.exp(-2.0 * inner))
    elif ACTIVATION == 2:
        return tl.maximum(x, 0.0)
    else:
        positive = tl.maximum(x, 0.0)
        return positive * positive


@triton.jit
def _up(
    x, gate_up, out, sorted_choices, block_expert, block_start, block_end,
    x_stride, expert_stride, weight_stride, out_stride,
    K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, CLAMP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    start = tl.load(block_start + block)
    end = tl.load(block_end + block)
    if start < end:
        expert = tl.load(block_expert + block).to(tl.int64)
        row = start + tl.arange(0, TOKENS)
        token = tl.load(sorted_choices + row, mask=row < end, other=0) // K
        unit = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        channel = tl.arange(0, DEPTH)
        weights = gate_up + expert * expert_stride + unit[:, None] * weight_stride + channel[None, :]
        inputs = x + token[None, :].to(tl.int64) * x_stride + channel[:, None]
        gate = tl.zeros((ROWS, TOKENS), dtype=tl.float32)
        value = tl.zeros((ROWS, TOKENS), dtype=tl.float32)
        for first in range(0, WIDTH, DEPTH):
            inside = first + channel < WIDTH
            here = (unit < HIDDEN)[:, None] & inside[None, :]
            columns = tl.load(inputs + first, mask=(row < end)[None, :] & inside[:, None], other=0.0)
            gates = tl.load(weights + first, mask=here, other=0.0)
            values = tl.load(weights + HIDDEN * weight_stride + first, mask=here, other=0.0)
            gate = tl.dot(gates, columns, gate, input_precision="ieee")
            value = tl.dot(values, columns, value, input_precision="ieee")
        if CLAMP > 0:
            gate = tl.minimum(gate, CLAMP)
            value = tl.minimum(tl.maximum(value, -CLAMP), CLAMP)
        h = _activate(gate, ACTIVATION) * value
        at = out + row[None, :].to(tl.int64) * out_stride + unit[:, None]
        tl.store(at, h.to(out.dtype.element_ty), mask=(row < end)[None, :] & (unit < HIDDEN)[:, None])


@triton.jit
def _down(
    h, weight, out, block_expert, block_start, block_end, h_stride, expert_stride, weight_stride, out_stride,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    start = tl.load(block_start + block)
    end = tl.load(block_end + block)
    if start < end:
        expert = tl.load(block_expert + block).to(tl.int64)
        row = start + tl.arange(0, TOKENS)
        unit = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        channel = tl.arange(0, DEPTH)
        weights = weight + expert * expert_stride + unit[:, None] * weight_stride + channel[None, :]
        inputs = h + row[None, :].to(tl.int64) * h_stride + channel[:, None]
        total = tl.zeros((ROWS, TOKENS), dtype=tl.float32)
        for first in range(0, HIDDEN, DEPTH):
            inside = first + channel < HIDDEN
            columns = tl.load(inputs + first, mask=(row < end)[None, :] & inside[:, None], other=0.0)
            tile = tl.load(weights + first, mask=(unit < WIDTH)[:, None] & inside[None, :], other=0.0)
            total = tl.dot(tile, columns, total, input_precision="ieee")
        at = out + row[None, :].to(tl.int64) * out_stride + unit[:, None]
        tl.store(at, total.to(out.dtype.element_ty), mask=(row < end)[None, :] & (unit < WIDTH)[:, None])


@triton.jit
def _combine(
    rows, weights, row_of, out, rows_stride, out_stride, K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(K):
        row = tl.load(row_of + token * K + choice).to(tl.int64)
        weight = tl.load(weights + token * K + choice)
        total += weight * tl.load(rows + row * rows_stride + channel, mask=channel < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + token * out_stride + channel, total.to(out.dtype.element_ty), mask=channel < WIDTH)
