# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Rotary position embedding, alone or on the way into the paged cache (arXiv 2104.09864).

The fused launch turns queries and keys by their positions and writes the keys, and what is remembered beside them,
straight into their pools: one launch in place of two rotations, two copies and an index computation.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Space, size_bucket
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.rotary.reference import attention_factor, frequencies
from day0.kernels.rotary.schema import RotaryAttributes

KERNEL = "rotary/triton"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
MAX_CHANNELS = 8192

SPACE = Space(
    "rotary", __file__, tuple({"ELEMENTS": e, "warps": w} for e, w in ((1024, 4), (2048, 4), (4096, 4), (1024, 2)))
)


@triton.jit
def _turn(
    source,
    target,
    source_at,
    target_at,
    live,
    position,
    frequency,
    factor,
    head_dim,
    offset,
    pairs,
    LAYOUT: tl.constexpr,
    ROUND_TABLES: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
):
    """Turns one head of each row: from source + source_at [rows] to target + target_at [rows]."""
    pair = tl.arange(0, BP)
    kept = live[:, None] & (pair < pairs)[None, :]
    angle = position.to(tl.float32)[:, None] * tl.load(frequency + pair, mask=pair < pairs, other=0.0)[None, :]
    cos, sin = factor * tl.cos(angle), factor * tl.sin(angle)
    if ROUND_TABLES:
        cos = cos.to(source.dtype.element_ty).to(tl.float32)
        sin = sin.to(source.dtype.element_ty).to(tl.float32)
    first_in = pair if LAYOUT == "half" else 2 * pair
    second_in = pair + pairs if LAYOUT == "half" else 2 * pair + 1
    first_out = 2 * pair if LAYOUT == "interleaved" else pair
    second_out = 2 * pair + 1 if LAYOUT == "interleaved" else pair + pairs
    from_turning = source + source_at[:, None] + offset
    to_turning = target + target_at[:, None] + offset
    first = tl.load(from_turning + first_in[None, :], mask=kept, other=0.0).to(tl.float32)
    second = tl.load(from_turning + second_in[None, :], mask=kept, other=0.0).to(tl.float32)
    tl.store(to_turning + first_out[None, :], (first * cos - second * sin).to(target.dtype.element_ty), mask=kept)
    tl.store(to_turning + second_out[None, :], (second * cos + first * sin).to(target.dtype.element_ty), mask=kept)
    if BD > 0:
        channel = tl.arange(0, BD)
        passing = (channel < head_dim) & ((channel < offset) | (channel >= offset + 2 * pairs))
        mask = live[:, None] & passing[None, :]
        value = tl.load(source + source_at[:, None] + channel[None, :], mask=mask, other=0.0)
        tl.store(target + target_at[:, None] + channel[None, :], value.to(target.dtype.element_ty), mask=mask)


@triton.jit
def _rotary(
    x,
    y,
    positions,
    frequency,
    factor,
    rows,
    heads,
    head_dim,
    offset,
    pairs,
    x_row,
    y_row,
    LAYOUT: tl.constexpr,
    ROUND_TABLES: tl.constexpr,
    BR: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    live = row < rows
    token, head = row // heads, row % heads
    position = tl.load(positions + token, mask=live, other=0)
    x_at, y_at = token * x_row + head * head_dim, token * y_row + head * head_dim
    _turn(
        x, y, x_at, y_at, live, position, frequency, factor, head_dim, offset, pairs, LAYOUT, ROUND_TABLES, BP, BD
    )  # fmt: skip


@triton.jit
def pool_rows(
    token, live, positions, cu_seqlens, page_table, sequences, table_row, PAGE: tl.constexpr, BS: tl.constexpr
):
    """int64 rows in a pool of the packed tokens [BT]: page * PAGE + position % PAGE."""
    ended = tl.zeros_like(token)
    for first in range(0, sequences, BS):
        s = first + tl.arange(0, BS)
        end = tl.load(cu_seqlens + 1 + s, mask=s < sequences, other=0)
        ended += tl.sum(((end[None, :] <= token[:, None]) & (s < sequences)[None, :]).to(tl.int64), 1)
    position = tl.load(positions + token, mask=live, other=0)
    page = tl.load(page_table + ended * table_row + position // PAGE, mask=live, other=0)
    return page * PAGE + position % PAGE


@triton.jit
def _remember(
    q,
    q_out,
    k,
    k_pool,
    v,
    v_pool,
    positions,
    cu_seqlens,
    page_table,
    frequency,
    factor,
    tokens,
    sequences,
    table_row,
    q_heads,
    k_heads,
    head_dim,
    v_dim,
    offset,
    k_offset,
    k_head_dim,
    pairs,
    q_row,
    q_out_row,
    k_row,
    k_pool_row,
    v_row,
    v_pool_row,
    LAYOUT: tl.constexpr,
    ROUND_TABLES: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    BS: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    """Axis 1 of the grid: the query heads, the key heads, then the values in blocks of BV channels."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    live = token < tokens
    position = tl.load(positions + token, mask=live, other=0)
    part = tl.program_id(1)
    if part < q_heads:
        _turn(
            q, q_out, token * q_row + part * head_dim, token * q_out_row + part * head_dim, live, position,
            frequency, factor, head_dim, offset, pairs, LAYOUT, ROUND_TABLES, BP, BD,
        )  # fmt: skip
    else:
        entry = pool_rows(token, live, positions, cu_seqlens, page_table, sequences, table_row, PAGE, BS)
        if part < q_heads + k_heads:
            head = part - q_heads
            _turn(
                k, k_pool, token * k_row + head * k_head_dim, entry * k_pool_row + head * k_head_dim, live, position,
                frequency, factor, k_head_dim, k_offset, pairs, LAYOUT, ROUND_TABLES, BP, BK,
            )  # fmt: skip
        else:
            channel = (part - q_heads - k_heads) * BV + tl.arange(0, BV)
            mask = live[:, None] & (channel < v_dim)[None, :]
            value = tl.load(v + token[:, None] * v_row + channel[None, :], mask=mask, other=0.0)
            to = v_pool + entry[:, None] * v_pool_row + channel[None, :]
            tl.store(to, value.to(v_pool.dtype.element_ty), mask=mask)


@lru_cache(maxsize=64)
def device_frequencies(a: RotaryAttributes, device: torch.device) -> Tensor:
    """The table on the device, copied at the first call: make that call before a graph is captured."""
    return frequencies(a).to(device)


def bucket(rows: int, head_dim: int) -> tuple[int, ...]:
    return size_bucket(rows), head_dim


def turn(
    a: RotaryAttributes,
    x: Tensor,  # [N, heads * head_dim]
    positions: Tensor,  # [N] int64
    frequency: Tensor,  # [rotary_dim / 2] float32
    *,
    out: Tensor,  # like x, and apart from it
    launch: dict[str, int] | None = None,
) -> None:
    """Rotates each token's slice of channels by its position. Raises ContractError before the launch."""
    tokens, channels = x.shape
    _require_heads(a, "x", x)
    require_tensor(KERNEL, "out", out, (tokens, channels), FLOATS)
    require(out.data_ptr() != x.data_ptr() or tokens == 0, KERNEL, "an output apart from its input")
    _require_positions(a, positions, frequency, tokens)
    heads = channels // a.head_dim
    rows = tokens * heads
    if rows == 0:
        return
    chosen = launch or SPACE.config(bucket(rows, a.head_dim))
    held = max(1, chosen["ELEMENTS"] // next_power_of_2(a.head_dim))
    _rotary[(triton.cdiv(rows, held),)](
        x,
        out,
        positions,
        frequency,
        attention_factor(a),
        rows,
        heads,
        a.head_dim,
        a.offset,
        a.rotary_dim // 2,
        x.stride(0),
        out.stride(0),
        LAYOUT=a.layout,
        ROUND_TABLES=not a.float32_tables,
        BR=held,
        BP=next_power_of_2(a.rotary_dim // 2),
        BD=_passing(a),
        num_warps=chosen["warps"],
    )


def turn_and_remember(
    a: RotaryAttributes,
    q: Tensor,  # [N, heads * head_dim]
    k: Tensor,  # [N, key_heads * key_head_dim]
    v: Tensor | None,  # [N, C]: values, or a latent
    batch: Batch,
    frequency: Tensor,  # [rotary_dim / 2] float32
    *,
    key_attributes: RotaryAttributes | None = None,
    q_out: Tensor,  # like q
    k_pool: Tensor,  # [rows, key_heads, key_head_dim], or [rows, key_head_dim]
    v_pool: Tensor | None,  # [rows, ...], C elements each
) -> None:
    """q_out = rotated q; rotated k and v become the batch's entries in the pools.

    `key_attributes` where keys turn another slice (MLA's rotary key is a head of its own); the frequencies are shared.
    Raises ContractError before the launch.
    """
    tokens = q.shape[0]
    of_keys = key_attributes or a
    _require_heads(a, "q", q)
    _require_heads(of_keys, "k", k)
    shared = {"head_dim": 0, "offset": 0}
    same = a.model_dump() | shared == of_keys.model_dump() | shared
    require(same, KERNEL, "keys that turn as queries do, but for the slice")
    require_tensor(KERNEL, "q_out", q_out, tuple(q.shape), FLOATS)
    require(q_out.data_ptr() != q.data_ptr() or tokens == 0, KERNEL, "an output apart from its input")
    require((v is None) == (v_pool is None), KERNEL, "values and a pool for them, or neither")
    _require_positions(a, batch.positions, frequency, tokens)
    v_dim = 0 if v is None else v.shape[1]
    for name, x, pool in (("k", k, k_pool), ("v", v, v_pool)):
        if x is not None and pool is not None:
            require_tensor(KERNEL, name, x, (tokens, None), FLOATS)
            entry = pool.shape[1:].numel() == x.shape[1] and (pool.shape[0] == 0 or pool[:1].is_contiguous())
            require(entry, KERNEL, f"a pool of contiguous entries of {x.shape[1]} channels for {name}")
            require(pool.dtype in FLOATS, KERNEL, f"a floating pool for {name}")
    if tokens == 0:
        return
    q_heads, k_heads = q.shape[1] // a.head_dim, k.shape[1] // of_keys.head_dim
    block = min(next_power_of_2(max(v_dim, 16)), 512)
    held = 1 if tokens <= 256 else 8
    _remember[(triton.cdiv(tokens, held), q_heads + k_heads + triton.cdiv(v_dim, block))](
        q,
        q_out,
        k,
        k_pool,
        k if v is None else v,
        k_pool if v_pool is None else v_pool,
        batch.positions,
        batch.cu_seqlens,
        batch.page_table,
        frequency,
        attention_factor(a),
        tokens,
        batch.sequences,
        batch.page_table.stride(0),
        q_heads,
        k_heads,
        a.head_dim,
        v_dim,
        a.offset,
        of_keys.offset,
        of_keys.head_dim,
        a.rotary_dim // 2,
        q.stride(0),
        q_out.stride(0),
        k.stride(0),
        k_pool.stride(0),
        0 if v is None else v.stride(0),
        0 if v_pool is None else v_pool.stride(0),
        LAYOUT=a.layout,
        ROUND_TABLES=not a.float32_tables,
        PAGE=PAGE_TOKENS,
        BT=held,
        BS=128,
        BP=next_power_of_2(a.rotary_dim // 2),
        BD=_passing(a),
        BK=_passing(of_keys),
        BV=block,
        num_warps=2,
    )


def _passing(a: RotaryAttributes) -> int:
    """Extent of the block that copies the channels that do not turn; 0 where all do."""
    return 0 if a.rotary_dim == a.head_dim else next_power_of_2(a.head_dim)


def _require_heads(a: RotaryAttributes, name: str, x: Tensor) -> None:
    require_tensor(KERNEL, name, x, (None, None), FLOATS)
    require(x.shape[1] % a.head_dim == 0, KERNEL, f"{name} of whole heads of {a.head_dim} channels, not {x.shape[1]}")
    require(a.head_dim <= MAX_CHANNELS, KERNEL, f"heads of at most {MAX_CHANNELS} channels, not {a.head_dim}")


def _require_positions(a: RotaryAttributes, positions: Tensor, frequency: Tensor, tokens: int) -> None:
    require_tensor(KERNEL, "positions", positions, (tokens,), (torch.int64,))
    require_tensor(KERNEL, "frequencies", frequency, (a.rotary_dim // 2,), (torch.float32,))
