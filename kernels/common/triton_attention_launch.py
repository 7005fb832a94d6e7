"""Launches the kernels of triton_attention.py on raw tensors: nothing is allocated, nothing waits for the device.

Grids come from tensor shapes alone: S sequences with N rows of queries have at most N / BT + S + 1 blocks of BT rows,
and a program without a block returns at once. How long the sequences are is known on the device only.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from day0.kernels.common import triton_attention
from day0.kernels.common.triton_attention import attend, merge
from day0.kernels.common.triton_attention_write import write_entries
from day0.kernels.common.triton_launch import (
    INTERPRETED,
    ContractError,
    early,
    next_power_of_2,
    require,
    require_tensor,
)
from day0.kernels.common.triton_tuning import Config, Space, size_bucket
from day0.kernels.interface.batch import PAGE_TOKENS, Batch

KERNEL = "triton attention"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
QUANTISED = (torch.float8_e4m3fn, torch.int8)
INTEGERS = (torch.int64, torch.int32)
TILE = 128  # channels of an entry that share a scale where it is quantised
MAX_KEY = 512  # channels: tiles of more leave no room for a second one on the way
MAX_SPLITS = 64
PLACES = 64  # columns: a multiple of every tile
_MERGED = 4096  # numbers of the parts that a program of `merge` joins

# float32, whose products are not for matrix units: a block has to fit in registers.
_SMALL: Config = {"BN": 32 if INTERPRETED else 16, "warps": 4, "stages": 1, "per_sm": 1, "apart": 0, "fetch": 0}
_SMALL_ROWS = 64 if INTERPRETED else 16


def _space(name: str, *configs: tuple[int, int, int, int, int, int]) -> Space:
    names = ("BN", "warps", "stages", "per_sm", "apart", "fetch")
    made = tuple(dict(zip(names, config, strict=True)) for config in configs)
    return Space(f"attention.{name}", (str(triton_attention.__file__), __file__), made)


# BN positions a tile; `per_sm` programs a multiprocessor before a sequence is not split further; `apart` and `fetch`:
# see `attend`.
LATENT = _space(
    "latent",
    (64, 8, 2, 1, 1, 1),
    (64, 8, 2, 1, 1, 0),
    (32, 8, 4, 1, 1, 0),
    (32, 8, 3, 1, 1, 0),
)
WIDE = _space("wide_latent", (32, 8, 3, 1, 1, 0))  # rope keys of more than 64 channels leave room for no more
FEW = _space(
    "few_rows",
    (64, 4, 3, 3, 0, 0),
    (64, 4, 3, 2, 0, 0),
    (64, 4, 4, 2, 0, 0),
    (64, 4, 2, 4, 0, 0),
    (64, 4, 3, 6, 0, 0),
    (32, 4, 4, 4, 0, 0),
    (32, 4, 4, 6, 0, 0),
    (64, 2, 3, 3, 0, 0),
)
MANY = _space(
    "many_rows",
    (64, 8, 2, 1, 0, 0),
    (64, 8, 3, 1, 0, 0),
    (64, 4, 2, 2, 0, 0),
    (64, 4, 3, 2, 0, 0),
    (32, 4, 3, 2, 0, 0),
)


@dataclass(frozen=True)
class Problem:
    """The extents of a read, all known without asking the device. `longest`: positions the memory has room for."""

    rows: int
    sequences: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    rope_dim: int
    longest: int
    listed: bool
    shared: bool
    dtype: torch.dtype
    kept: torch.dtype  # of keys and values in memory

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def blocks(self) -> tuple[int, int]:
        """(BT, BH): tokens and heads of a block of queries, powers of 2; a matrix product wants 16 rows at least."""
        most = _SMALL_ROWS if self.dtype == torch.float32 else 64 if self.shared else 128
        heads = min(next_power_of_2(self.group), most, 64)
        tokens = 1
        if not self.listed:
            tokens = min(next_power_of_2(-(-self.rows // max(self.sequences, 1))), most // heads)
        return tokens, max(heads, 16 // tokens)

    @property
    def programs(self) -> int:
        """Programs of one split."""
        tokens, heads = self.blocks
        blocks = self.rows if tokens == 1 else self.rows // tokens + self.sequences + 1
        return blocks * self.kv_heads * -(-self.group // heads)

    @property
    def bucket(self) -> tuple[int | str, ...]:
        dims = (self.key_dim, self.value_dim, self.rope_dim, *self.blocks)
        form = "listed" if self.listed else "dense"
        return (str(self.dtype), str(self.kept), form, *dims, size_bucket(self.programs), size_bucket(self.longest))

    @property
    def space(self) -> Space | None:
        """Where its configuration is looked up; None: there is only one."""
        if self.dtype == torch.float32:
            return None
        tokens, heads = self.blocks
        if self.shared and self.key_dim > 256:
            return LATENT if self.rope_dim <= 64 else WIDE
        return FEW if tokens * heads <= 32 else MANY

    def config(self) -> Config:
        return _SMALL if self.space is None else self.space.config(self.bucket)

    def splits(self, config: Config) -> int:
        """Into how many parts to cut what each block reads: enough to fill the device, few enough to merge cheaply.

        With s parts the device takes ceil(programs * s / places) turns, each 1 / s long; a part costs about 3 % of a
        whole read in merging. Prefill fills the device with one part.
        """
        places = multiprocessors() * config["per_sm"]
        most = min(MAX_SPLITS, max(-(-self.longest // config["BN"]), 1))
        if self.programs >= 2 * places:
            return 1
        return min(range(1, most + 1), key=lambda s: -(-self.programs * s // places) / s * (1 + 0.03 * s))

    @property
    def place_columns(self) -> int:
        """Columns of the pool rows of lists: whole tiles."""
        return -(-self.longest // PLACES) * PLACES if self.listed else 0

    def scratch(self, splits: int) -> int:
        """float32 numbers `read` needs beside its tensors: sums of the parts, parts, and pool rows of lists."""
        sums = self.rows * self.heads * splits if splits > 1 else 0
        return sums + -(-sums * self.value_dim * self.dtype.itemsize // 4) + self.rows * self.place_columns


@cache
def multiprocessors() -> int:
    """Of the current device; few where kernels are interpreted, so that both ways of the launcher are taken."""
    if INTERPRETED:
        return 4
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)


def problem(
    q: Tensor,
    keys: Tensor,
    values: Tensor | None,
    *,
    batch: Batch,
    indices: Tensor | None = None,
    rope_keys: Tensor | None = None,
) -> Problem:
    """The extents of a `read` of these tensors. Raises ContractError on tensors of other shapes than `read` takes."""
    require_tensor(KERNEL, "q", q, (None, None, None), FLOATS)
    require_tensor(KERNEL, "keys", keys, (None, None, q.shape[2]))
    if values is not None:
        require_tensor(KERNEL, "values", values, (keys.shape[0], keys.shape[1], None))
    if rope_keys is not None:
        require_tensor(KERNEL, "rope_keys", rope_keys, (keys.shape[0], None), (q.dtype,))
    if indices is not None:
        require_tensor(KERNEL, "indices", indices, (q.shape[0], None), INTEGERS)
    return Problem(
        rows=q.shape[0],
        sequences=batch.sequences,
        heads=q.shape[1],
        kv_heads=keys.shape[1],
        key_dim=keys.shape[2],
        value_dim=keys.shape[2] if values is None else values.shape[2],
        rope_dim=0 if rope_keys is None else rope_keys.shape[1],
        longest=batch.page_table.shape[1] * PAGE_TOKENS if indices is None else indices.shape[1],
        listed=indices is not None,
        shared=values is None,
        dtype=q.dtype,
        kept=keys.dtype,
    )


def read(
    q: Tensor,  # [N, heads, key_dim]
    keys: Tensor,  # [pool rows, kv_heads, key_dim]
    values: Tensor | None,  # [pool rows, kv_heads, value_dim]; None: the keys are the values too (latents)
    out: Tensor,  # [N, heads, value_dim], written
    *,
    scale: float,
    batch: Batch,
    indices: Tensor | None = None,  # [N, width] int64 or int32; None: every position up to the query's own
    q_rope: Tensor | None = None,  # [N, heads, rope_dim]
    rope_keys: Tensor | None = None,  # [pool rows, rope_dim], shared by all heads
    key_scales: Tensor | None = None,  # [pool rows, kv_heads, key_dim / 128] float32, for keys in float8 or int8
    value_scales: Tensor | None = None,  # [pool rows, kv_heads, value_dim / 128] float32
    scratch: Tensor | None = None,  # [Problem.scratch(splits)] float32, where that is not 0; written
    splits: int | None = None,
    config: Config | None = None,
    placed: bool = False,
    follows: bool = False,
) -> None:
    """out = softmax(scale * q k^T) v over the pool rows of each query's positions, which must have been written.

    A position listed twice counts twice. -1 lists nothing, a row that sees nothing and rows past cu_seqlens[-1] get
    zeros, and a position that is not one up to the query's own makes the row NaN: no other entry is ever read.
    `placed`: indices are int32 pool rows, or -1, which are read as they are: for lists that a kernel made. `follows`:
    the launch just before this one made them and lets the next start early.
    Raises ContractError before anything runs when tensors do not fit each other or the kernel.
    """
    p = problem(q, keys, values, batch=batch, indices=indices, rope_keys=rope_keys)
    _require_fit(p, q, keys, values, out, batch, q_rope, rope_keys, quantised=key_scales is not None)
    if key_scales is not None:
        _require_scales(p, keys, values, key_scales, value_scales)
    if p.rows == 0:
        return
    if placed:
        fits = indices is not None and indices.dtype == torch.int32 and p.longest % PLACES == 0
        require(fits, KERNEL, f"placed indices in int32 and of a multiple of {PLACES} columns")
    require(placed or not follows, KERNEL, "placed indices from the launch before")
    config = p.config() if config is None else config
    splits = p.splits(config) if splits is None else splits
    require(PAGE_TOKENS % config["BN"] == 0, KERNEL, f"tiles that divide a page of {PAGE_TOKENS}")
    parts = sums = places = None
    needed = p.scratch(splits)
    if needed:
        if scratch is None:
            raise ContractError(
                f"{KERNEL} needs scratch for {splits} splits", hint="give Problem.scratch(splits) numbers"
            )
        require_tensor(KERNEL, "scratch", scratch, (None,), (torch.float32,))
        require(scratch.shape[0] >= needed, KERNEL, f"{needed} numbers of scratch")
        if placed:
            places, indices = indices, None
        elif p.listed:
            # First: a tile of them is read in pieces of 16 bytes.
            size = p.rows * p.place_columns
            places = scratch[:size].view(torch.int32).view(p.rows, p.place_columns)
            scratch = scratch[size:]
        if splits > 1:
            size = p.rows * p.heads * splits
            sums = scratch[needed - p.rows * p.place_columns - size :][:size].view(p.rows, p.heads, splits)
            numbers = scratch.view(p.dtype)[: size * p.value_dim]
            parts = numbers.view(p.rows, p.heads, splits, p.value_dim)
    tiles = 0 if key_scales is None else p.key_dim // TILE
    if tiles == 1:
        # Two channels at a time.
        keys, values = keys.view(torch.int16), None if values is None else values.view(torch.int16)
    if indices is not None and places is None:
        places = indices.view(torch.int32)  # lists of no positions: nothing is read of them
    tokens, heads = p.blocks
    to = out if parts is None else parts
    grid = p.programs * splits
    require(grid < 2**31, KERNEL, "fewer than 2^31 programs: a shorter batch")
    attend[(grid,)](
        q,
        q_rope,
        keys,
        rope_keys,
        values,
        key_scales,
        value_scales,
        indices,
        places,
        to,
        sums,
        batch.cu_seqlens,
        batch.context_lens,
        batch.page_table,
        scale * math.log2(math.e),
        p.rows,
        p.sequences,
        splits,
        p.longest if p.listed else 0,
        *_strides(q, 2),
        *_strides(q_rope, 2),
        *_strides(keys, 2),
        *_strides(rope_keys, 1),
        *_strides(values, 2),
        *_strides(key_scales, 2),
        *_strides(value_scales, 2),
        *_strides(indices, 1),
        *_strides(places, 1),
        *_strides(to, 2),
        p.value_dim,
        *_strides(sums, 2),
        batch.page_table.stride(0),
        GROUP=p.group,
        KV_HEADS=p.kv_heads,
        DK=p.key_dim,
        DV=p.value_dim,
        DR=p.rope_dim,
        BK=_padded(p.key_dim),
        BV=_padded(p.value_dim),
        BR=_padded(p.rope_dim),
        BT=tokens,
        BH=heads,
        BN=config["BN"],
        BS=next_power_of_2(p.sequences),
        PAGE=PAGE_TOKENS,
        LISTED=p.listed,
        SHARED=p.shared,
        TILES=tiles,
        FLOAT8=p.kept == torch.float8_e4m3fn,
        SPLIT=splits > 1,
        APART=bool(config["apart"]),
        FETCH=bool(config["fetch"]) and p.listed and q.element_size() == 2 and p.kept == p.dtype,
        EARLY=follows,
        num_warps=config["warps"],
        num_stages=config["stages"],
        **early(follows),
    )
    if parts is None or sums is None:
        return
    # A warp for 2048 numbers, all of whose loads are on their way at once; many parts are cut into more programs.
    padded, most = next_power_of_2(splits), _padded(p.value_dim)
    width = min(most, max(_MERGED // padded, 64))
    merge[(p.rows * p.heads, -(-p.value_dim // width))](
        parts,
        sums,
        out,
        splits,
        p.heads,
        *_strides(parts, 2),
        *_strides(sums, 2),
        *_strides(out, 2),
        DV=p.value_dim,
        BV=width,
        BP=padded,
        EARLY=follows,
        num_warps=max(padded * width // 2048, 1),
        **early(follows),
    )


def write(
    ports: tuple[Tensor, ...],  # one or two of [N, channels]
    pools: tuple[Tensor, ...],  # [pool rows, channels], written
    *,
    batch: Batch,
) -> None:
    """The new tokens' entries to their places, in place; rows past cu_seqlens[-1] go nowhere."""
    require(len(ports) == len(pools) and 1 <= len(ports) <= 2, KERNEL, "a pool for each of one or two ports")
    rows = ports[0].shape[0]
    for port, pool in zip(ports, pools, strict=True):
        require_tensor(KERNEL, "an entry's pool", pool, (None, None))
        require_tensor(KERNEL, "a port", port, (rows, pool.shape[1]), (pool.dtype,))
        _require_rows(pool)
    _require_batch(batch)
    if rows == 0:
        return
    widest = max(pool.shape[1] for pool in pools)
    write_entries[(rows, len(ports))](
        ports[0],
        ports[-1],
        pools[0],
        pools[-1],
        batch.cu_seqlens,
        batch.context_lens,
        batch.page_table,
        rows,
        batch.sequences,
        ports[0].stride(0),
        ports[-1].stride(0),
        pools[0].stride(0),
        pools[-1].stride(0),
        batch.page_table.stride(0),
        FIRST=pools[0].shape[1],
        SECOND=pools[-1].shape[1],
        BC=min(next_power_of_2(widest), 1024),
        BS=next_power_of_2(batch.sequences),
        PAGE=PAGE_TOKENS,
        num_warps=1 if widest <= 256 else 4,
    )


def _strides(x: Tensor | None, count: int) -> tuple[int, ...]:
    return x.stride()[:count] if x is not None else (0,) * count


def _padded(channels: int) -> int:
    return max(next_power_of_2(channels), 16)


def _require_fit(
    p: Problem,
    q: Tensor,
    keys: Tensor,
    values: Tensor | None,
    out: Tensor,
    batch: Batch,
    q_rope: Tensor | None,
    rope_keys: Tensor | None,
    quantised: bool,
) -> None:
    kept: tuple[Any, ...] = QUANTISED if quantised else (q.dtype,)
    for name, pool in (("keys", keys), ("values", values)):
        if pool is not None:
            require_tensor(KERNEL, name, pool, tuple(pool.shape), kept)
    require_tensor(KERNEL, "out", out, (p.rows, p.heads, p.value_dim), (q.dtype,))
    require((q_rope is None) == (rope_keys is None), KERNEL, "q_rope and rope_keys together")
    if q_rope is not None:
        require_tensor(KERNEL, "q_rope", q_rope, (p.rows, p.heads, p.rope_dim), (q.dtype,))
    require(p.heads % p.kv_heads == 0, KERNEL, "as many query heads for every key head")
    require(max(p.key_dim, p.value_dim) <= MAX_KEY, KERNEL, f"keys and values of at most {MAX_KEY} channels")
    _require_rows(keys)
    for name, pool in (("keys", keys), ("values", values), ("rope_keys", rope_keys)):
        if pool is not None:
            _require_near(name, pool)
    _require_batch(batch)


def _require_near(name: str, pool: Tensor) -> None:
    """Offsets within a page are 32-bit."""
    require(pool.stride(0) * PAGE_TOKENS < 2**31, KERNEL, f"{name} whose rows are fewer than 2^25 numbers apart")


def _require_scales(
    p: Problem, keys: Tensor, values: Tensor | None, key_scales: Tensor, value_scales: Tensor | None
) -> None:
    tiles = p.key_dim // TILE
    whole = p.key_dim % TILE == 0 and p.value_dim == p.key_dim and tiles == next_power_of_2(tiles)
    require(whole, KERNEL, f"quantised entries of 1, 2 or 4 tiles of {TILE} channels, keys and values alike")
    require((values is None) == (value_scales is None), KERNEL, "scales of the values where there are values")
    for pool in (keys, values) if tiles == 1 else ():
        if pool is not None:
            starts = (pool.storage_offset(), *pool.stride()[:2])
            require(
                all(n % 2 == 0 for n in starts), KERNEL, "quantised entries of 128 channels that begin at even bytes"
            )
    for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
        if scales is not None:
            require_tensor(KERNEL, name, scales, (keys.shape[0], p.kv_heads, tiles), (torch.float32,))
            _require_near(name, scales)


def _require_rows(pool: Tensor) -> None:
    require(pool.shape[0] < 2**31, KERNEL, "a pool of fewer than 2^31 rows")


def _require_batch(batch: Batch) -> None:
    sequences = batch.context_lens.shape[0]
    require_tensor(KERNEL, "context_lens", batch.context_lens, (None,), (torch.int64,))
    require_tensor(KERNEL, "cu_seqlens", batch.cu_seqlens, (sequences + 1,), (torch.int64,))
    require_tensor(KERNEL, "page_table", batch.page_table, (sequences, None), (torch.int64,))
