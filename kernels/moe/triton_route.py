"""Routing in Triton: logits, the choice of experts, and the lists by which expert kernels find their tokens.

Three launches that never go back to the host: logits [N, experts]; per token its experts in ascending order and their
weights; per expert its choices in ascending order of tokens, cut into blocks of `block` rows.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.moe.schema import MoeAttributes

_SCAN = 1024


@dataclass(frozen=True)
class Routing:
    """Scratch and result of `route`, for N tokens with k choices each; M = N * k.

    `sorted_choices[r]` = token * k + choice for row r, rows of one expert together; `row_of[token * k + choice]` = r.
    Block b computes rows block_start[b] .. block_end[b] - 1 with expert block_expert[b]; blocks that are not needed
    have block_start == block_end.
    """

    logits: Tensor  # [N, experts] float32
    experts: Tensor  # [N, k] int32, ascending
    weights: Tensor  # [N, k] float32
    sorted_choices: Tensor  # [M] int32
    row_of: Tensor  # [M] int32
    counts: Tensor  # [experts + 1] int32: first row of each expert, then M
    block_expert: Tensor  # [blocks] int32
    block_start: Tensor  # [blocks] int32
    block_end: Tensor  # [blocks] int32
    block: int

    @staticmethod
    def allocate(a: MoeAttributes, tokens: int, block: int, device: torch.device | str) -> "Routing":
        choices = tokens * a.top_k
        # Every expert that is hit leaves at most one block that is not full.
        blocks = min(choices, a.experts) + choices // block

        def ints(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        return Routing(
            logits=torch.empty(tokens, a.experts, dtype=torch.float32, device=device),
            experts=ints(tokens, a.top_k),
            weights=torch.empty(tokens, a.top_k, dtype=torch.float32, device=device),
            sorted_choices=ints(choices),
            row_of=ints(choices),
            counts=ints(a.experts + 1),
            block_expert=ints(blocks),
            block_start=ints(blocks),
            block_end=ints(blocks),
            block=block,
        )


def route(a: MoeAttributes, x: Tensor, router: Tensor, router_bias: Tensor | None, into: Routing) -> None:
    """Fill `into` for x [N, width], router [experts, width], router_bias [experts] float32.

    Formulas as in `reference.route`; equal scores in expert order. A row of NaN chooses experts 0 .. k - 1 with weights
    of NaN, so that it shows in that token's result and nowhere else.
    Raises ContractError where x or router have other shapes or `into` was made for other sizes.
    """
    kernel = "moe.route"
    n = x.shape[0]
    require_tensor(kernel, "x", x, (None, a.width))
    require_tensor(kernel, "router", router, (a.experts, a.width), (x.dtype,))
    require(into.experts.shape == (n, a.top_k), kernel, f"scratch for {n} tokens")
    require((router_bias is not None) == a.selection_bias, kernel, "router_bias where the attributes have one")
    if n == 0:
        return
    padded = next_power_of_2(a.experts)
    _logits[(triton.cdiv(a.experts, 16), triton.cdiv(n, 16))](
        x, router, into.logits, n, x.stride(0), router.stride(0),
        EXPERTS=a.experts, WIDTH=a.width, TOKENS=16, BLOCK=16, DEPTH=min(512, max(16, next_power_of_2(a.width))),
        ROUND=not a.router_float32, num_warps=4, num_stages=3,
    )  # fmt: skip
    _choose[(n,)](
        into.logits, router_bias, into.experts, into.weights,
        EXPERTS=a.experts, PADDED=padded, K=a.top_k, SOFTMAX=a.scores == "softmax", BIAS=a.selection_bias,
        GROUPS=a.groups, KEPT=a.groups_kept, GROUPS_PADDED=next_power_of_2(a.groups), RENORMALISE=a.renormalise,
        EPS=a.renormalise_eps, SCALE=a.routed_scale, DTYPE=_round_to(a, x.dtype), num_warps=4,
    )  # fmt: skip
    choices = n * a.top_k
    blocks = into.block_expert.shape[0]
    scan = min(_SCAN, max(16, next_power_of_2(choices)))
    _count[(1,)](
        into.experts, into.counts, into.block_expert, into.block_start, into.block_end, choices, blocks,
        EXPERTS=a.experts, PADDED=padded, SCAN=scan, BLOCK=into.block, BLOCKS_PADDED=next_power_of_2(blocks + 1),
        num_warps=8,
    )  # fmt: skip
    _scatter[(a.experts,)](into.experts, into.counts, into.sorted_choices, into.row_of, choices, SCAN=scan, num_warps=4)


def _round_to(a: MoeAttributes, dtype: torch.dtype) -> tl.constexpr:
    """The dtype that the weights pass through."""
    if a.router_float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]


@triton.jit
def _logits(
    x, router, logits, n, x_stride, router_stride,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr,
    ROUND: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.arange(0, DEPTH)
    total = tl.zeros((TOKENS, BLOCK), dtype=tl.float32)
    for first in range(0, WIDTH, DEPTH):
        inside = first + channel < WIDTH
        rows = tl.load(
            x + token[:, None].to(tl.int64) * x_stride + first + channel[None, :],
            mask=(token < n)[:, None] & inside[None, :],
            other=0.0,
        )
        columns = tl.load(
            router + expert[None, :] * router_stride + first + channel[:, None],
            mask=(expert < EXPERTS)[None, :] & inside[:, None],
            other=0.0,
        )
        total = tl.dot(rows, columns, total, input_precision="ieee")
    if ROUND:
        total = total.to(x.dtype.element_ty).to(tl.float32)
    at = logits + token[:, None].to(tl.int64) * EXPERTS + expert[None, :]
    tl.store(at, total, mask=(token < n)[:, None] & (expert < EXPERTS)[None, :])


@triton.jit
def _sortable(x):
    """float32 as int32 whose order is the same; -inf smallest of all numbers, NaN made the smallest."""
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x != x, -2147483647, ordered)


@triton.jit
def _choose(
    logits, bias, experts, weights,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, K: tl.constexpr, SOFTMAX: tl.constexpr, BIAS: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, GROUPS_PADDED: tl.constexpr, RENORMALISE: tl.constexpr,
    EPS: tl.constexpr, SCALE: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, PADDED)
    real = expert < EXPERTS
    u = tl.load(logits + token * EXPERTS + expert, mask=real, other=float("-inf"))
    if SOFTMAX:
        e = tl.exp(u - tl.max(u, axis=0))
        score = e / tl.sum(e, axis=0)
    else:
        score = 1.0 / (1.0 + tl.exp(-u))
    choice = score
    if BIAS:
        choice += tl.load(bias + expert, mask=real, other=0.0)
    key = tl.where(real, _sortable(choice), -2147483648)
    if GROUPS > 1:
        group = expert // (EXPERTS // GROUPS)
        number = tl.arange(0, GROUPS_PADDED)
        member = (group[None, :] == number[:, None]) & real[None, :]
        inside = tl.where(member, choice[None, :], float("-inf"))
        best = tl.argmax(inside, axis=1, tie_break_left=True)
        first = tl.max(inside, axis=1)
        second = tl.max(tl.where(expert[None, :] == best[:, None], float("-inf"), inside), axis=1)
        group_key = tl.where(number < GROUPS, _sortable(first + second), -2147483648)
        kept = tl.zeros((PADDED,), dtype=tl.int32)
        for _ in range(KEPT):
            chosen = tl.argmax(group_key, axis=0, tie_break_left=True)
            kept = tl.where(group == chosen, 1, kept)
            group_key = tl.where(number == chosen, -2147483648, group_key)
        key = tl.where(kept == 1, key, -2147483648)
    taken = tl.zeros((PADDED,), dtype=tl.int32)
    for _ in range(K):
        best_expert = tl.argmax(key, axis=0, tie_break_left=True)
        taken = tl.where(expert == best_expert, 1, taken)
        key = tl.where(expert == best_expert, -2147483648, key)
    weight = tl.where(taken == 1, score, 0.0)
    if RENORMALISE:
        weight = weight / (tl.sum(weight, axis=0) + EPS)
    weight = (weight * SCALE).to(DTYPE).to(tl.float32)
    rank = tl.cumsum(taken, axis=0) - 1
    at = token * K + rank
    tl.store(experts + at, expert, mask=taken == 1)
    tl.store(weights + at, weight, mask=taken == 1)


@triton.jit
def _count(
    experts, counts, block_expert, block_start, block_end, choices, blocks,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, SCAN: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_PADDED: tl.constexpr,
):  # fmt: skip
    """One program: how many choices each expert has, where its rows begin, and the blocks they are cut into."""
    expert = tl.arange(0, PADDED)
    found = tl.zeros((PADDED,), dtype=tl.int32)
    for first in range(0, choices, SCAN):
        i = first + tl.arange(0, SCAN)
        ids = tl.load(experts + i, mask=i < choices, other=0)
        found += tl.histogram(ids, PADDED)
        # The padding counted as expert 0.
        found -= tl.where(expert == 0, tl.sum((i >= choices).to(tl.int32), axis=0), 0)
    ends = tl.cumsum(found, axis=0)
    starts = ends - found
    tl.store(counts + expert, starts, mask=expert < EXPERTS)
    tl.store(counts + EXPERTS, choices)
    needed = (found + BLOCK - 1) // BLOCK
    last = tl.cumsum(needed, axis=0)
    number = tl.arange(0, BLOCKS_PADDED)
    tl.store(block_start + number, tl.zeros_like(number), mask=number < blocks)
    tl.store(block_end + number, tl.zeros_like(number), mask=number < blocks)
    tl.store(block_expert + number, tl.zeros_like(number), mask=number < blocks)
    tl.debug_barrier()
    most = tl.max(needed, axis=0)
    for j in range(0, most):
        at = last - needed + j
        mine = (j < needed) & (expert < EXPERTS)
        tl.store(block_expert + at, expert, mask=mine)
        tl.store(block_start + at, starts + j * BLOCK, mask=mine)
        tl.store(block_end + at, tl.minimum(starts + (j + 1) * BLOCK, ends), mask=mine)


@triton.jit
def _scatter(experts, counts, sorted_choices, row_of, choices, SCAN: tl.constexpr):
    """One program per expert: its choices in order, without atomics, so that the order is always the same."""
    expert = tl.program_id(0)
    row = tl.load(counts + expert)
    if row < tl.load(counts + expert + 1):
        for first in range(0, choices, SCAN):
            i = first + tl.arange(0, SCAN)
            mine = (tl.load(experts + i, mask=i < choices, other=-1) == expert).to(tl.int32)
            at = row + tl.cumsum(mine, axis=0) - 1
            tl.store(sorted_choices + at, i, mask=mine == 1)
            tl.store(row_of + i, at, mask=mine == 1)
            row += tl.sum(mine, axis=0)
