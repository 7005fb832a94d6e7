"""Launches the choice of candidates: block after block of query rows is scored, then its best are selected.

The scores of a block of rows are kept as integers in scratch of at most SCRATCH numbers, which stay in L2 between the
two launches; a matrix of all scores never is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton import cdiv

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Space, size_bucket
from day0.kernels.index_select import triton_scores, triton_select
from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.index_select.triton_scores import score_kernel
from day0.kernels.index_select.triton_select import select_kernel
from day0.kernels.interface.batch import PAGE_TOKENS, Batch

KERNEL = "index_select/triton"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
QUANTISED = {torch.uint8: "e4m3", torch.int8: "int8"}
DIMS = (32, 64, 128, 256)
GROUP = 32
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by groups of a key
MAX_HEADS = 128
MAX_BUDGET = 4096
SCRATCH = 2**23
SAMPLE_EVERY = 16
MAX_PARTS = 16

# block: candidates a step (at least 16 a warp, see `score_kernel`); waves: programs per multiprocessor; columns: query
# rows times heads in one product, where a sequence has as many queries.
SCORES = Space(
    "index_select.scores",
    triton_scores.__file__,
    tuple(
        {"block": block, "warps": warps, "stages": stages, "waves": waves, "columns": columns}
        for block, warps, stages, waves, columns in (
            (64, 4, 4, 2, 128),
            (64, 4, 3, 3, 128),
            (64, 4, 4, 3, 128),
            (64, 4, 3, 4, 128),
            (64, 4, 2, 6, 128),
            (64, 4, 6, 2, 128),
            (128, 8, 4, 1, 256),
            (128, 8, 3, 2, 256),
            (128, 4, 3, 2, 128),
        )
    ),
)
# The order of float32 sums follows from the block, so there is only one; such products are for checks.
PLAIN: Mapping[str, int] = {"block": 64, "warps": 4, "stages": 1, "waves": 2, "columns": 1}
# tile: scores a step of the search goes over; list: how many candidates it narrows to, at least; waves: programs per
# multiprocessor.
SELECT = Space(
    "index_select.select",
    triton_select.__file__,
    (
        {"tile": 4096, "list": 2048, "warps": 16, "waves": 1},
        {"tile": 4096, "list": 2048, "warps": 16, "waves": 2},
        {"tile": 2048, "list": 2048, "warps": 8, "waves": 2},
    ),
)
Config = Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """The launches for a shape: everything follows from the extents of tensors, nothing from what is in them.

    `blocks` of `together` query rows; `step` of them at a time are scored in `splits` and selected from.
    """

    scores: Config
    select: Config
    k: int
    together: int
    blocks: int
    step: int
    splits: int
    candidates: int
    list: int
    sample: int
    parts: int

    @property
    def slots(self) -> int:
        """Rows that scratch has room for."""
        return self.step * self.together

    @property
    def scratch(self) -> int:
        """int32 numbers of scratch: a row's scores, ids and keys of candidates, and how many each part kept."""
        return self.slots * (3 * self.candidates + self.parts + 1)


def plan(
    a: IndexSelectAttributes,
    batch: Batch,
    rows: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    scores: Config | None = None,
    select: Config | None = None,
) -> Plan:
    """The launches for `rows` query rows of a batch, q in `dtype`; what is not given is that measured.

    Queries of a sequence share what they read of its keys, as many as one matrix product takes.
    """
    k = a.budget // a.pool
    candidates = batch.page_table.shape[1] * PAGE_TOKENS // a.pool
    shape = bucket(a, batch, rows, dtype)
    if scores is None:
        scores = PLAIN if dtype == torch.float32 else SCORES.config(shape)
    alike = 1 if batch.phase == "decode" else next_power_of_2(cdiv(rows, batch.sequences))
    together = min(alike, max(scores["columns"] // padded(a.heads), 1))
    scores = fitting(scores, a, dtype, together)
    select = SELECT.config(shape) if select is None else select
    blocks = rows if together == 1 else rows // together + batch.sequences
    step = max(1, min(blocks, SCRATCH // (candidates * together)))
    # Of equally long sequences only so many blocks have rows.
    busy = max(1, min(step, cdiv(rows, together)))
    splits = max(1, min(scores["waves"] * multiprocessors(device) // busy, cdiv(candidates, scores["block"])))
    tile = min(select["tile"], next_power_of_2(candidates))
    selecting = max(1, min(step * together, rows))
    parts = max(1, min(select["waves"] * multiprocessors(device) // selecting, cdiv(candidates, tile), MAX_PARTS))
    return Plan(
        scores,
        {**select, "tile": tile},
        k,
        together,
        blocks,
        step,
        splits,
        candidates,
        next_power_of_2(max(select["list"], 2 * k)),
        next_power_of_2(max(min(candidates // SAMPLE_EVERY, 2**14), 16)),
        parts,
    )


def bucket(a: IndexSelectAttributes, batch: Batch, rows: int, dtype: torch.dtype) -> tuple[int | str, ...]:
    """What shares a measured configuration."""
    candidates = batch.page_table.shape[1] * PAGE_TOKENS // a.pool
    sizes = size_bucket(rows), size_bucket(batch.sequences), size_bucket(candidates)
    return (batch.phase, a.heads, a.dim, a.budget, a.pool, str(dtype), *sizes)


def padded(heads: int) -> int:
    """Heads up to what a matrix product takes."""
    return max(16, next_power_of_2(heads))


def fitting(config: Config, a: IndexSelectAttributes, dtype: torch.dtype, together: int) -> Config:
    """The configuration with as few stages as leave shared memory for the queries beside the tiles of keys."""
    room = 208 * 1024 - together * padded(a.heads) * a.dim * max(dtype.itemsize, 2)
    return {**config, "stages": max(1, min(config["stages"], room // (config["block"] * a.dim * dtype.itemsize)))}


@cache
def multiprocessors(device: torch.device) -> int:
    """Of the device; interpreted, a number small enough for small tests to go over all paths."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2


def workspace(steps: Plan, device: torch.device) -> Tensor:
    """Scratch for `choose`: int32, what is in it does not matter before or after."""
    return torch.empty(steps.scratch, dtype=torch.int32, device=device)


def choose(
    a: IndexSelectAttributes,
    steps: Plan,
    q: Tensor,  # [N, heads * dim]
    keys: Tensor,  # [pool rows, dim], the new ones in it
    weights: Tensor | None,  # [N, heads]
    out: Tensor,  # [N, width] int64 or int32
    flag: Tensor,  # [1] int32: set to 1 if the score of a visible candidate is NaN, else left alone
    scratch: Tensor,  # see `workspace`
    *,
    batch: Batch,
    q_scales: Tensor | None = None,  # [N, heads * dim // 32] uint8
    key_scales: Tensor | None = None,  # [pool rows, dim // 32] uint8
    placed: bool = False,
) -> None:
    """Writes for each query what the reference's `select` gives: ascending tokens, then -1; padded rows all -1.

    NaN counts as the largest score, equal to itself. A query that sees no more than the budget is not scored, so NaN
    there raises no flag. With scales, q and keys are uint8 (e4m3) or int8 and mean value * 2^(scale - 127), one scale
    for 32 channels. `placed`: writes rows of a pool with an entry for each token instead of tokens, and -1 in as many
    columns as out has (int32: the pool has fewer than 2^31 rows). Raises ContractError before anything is launched.
    """
    rows = q.shape[0]
    _require(a, steps, q, keys, weights, out, flag, scratch, batch, q_scales, key_scales, placed)
    quantised = "" if key_scales is None else QUANTISED[keys.dtype]
    if quantised:
        # Two channels at a time.
        q, keys = q.view(torch.int16), keys.view(torch.int16)
    key_words = keys if key_scales is None else key_scales.view(WORDS[a.dim // GROUP])
    slots = steps.slots
    sizes = [*(slots * steps.candidates,) * 3, slots * steps.parts, slots]
    scored, kept, kept_keys, counts, arrived = scratch.split(sizes)
    head_weights = q if weights is None else weights
    for first in range(0, steps.blocks, steps.step):
        blocks = min(steps.step, steps.blocks - first)
        score_kernel[(blocks, steps.splits)](
            q,
            q if q_scales is None else q_scales,
            head_weights,
            keys,
            key_words,
            batch.page_table,
            batch.cu_seqlens,
            batch.context_lens,
            scored,
            arrived,
            flag,
            first,
            batch.sequences,
            steps.k,
            a.scale * a.weight_scale,
            q.stride(0),
            0 if q_scales is None else q_scales.stride(0),
            head_weights.stride(0),
            keys.stride(0),
            key_words.stride(0),
            batch.page_table.stride(0),
            steps.candidates,
            HEADS=a.heads,
            H=padded(a.heads),
            D=a.dim,
            R=steps.together,
            B=steps.scores["block"],
            ENTRIES=PAGE_TOKENS // a.pool,
            POOL=a.pool,
            WEIGHTED=weights is not None,
            QUANTISED=quantised,
            num_warps=steps.scores["warps"],
            num_stages=steps.scores["stages"],
        )
        select_kernel[(blocks * steps.together, steps.parts)](
            scored,
            kept,
            kept_keys,
            counts,
            arrived,
            out,
            batch.page_table,
            batch.cu_seqlens,
            batch.context_lens,
            first,
            rows,
            batch.sequences,
            steps.k,
            out.shape[1],
            steps.candidates,
            out.stride(0),
            batch.page_table.stride(0),
            R=steps.together,
            LIST=steps.list,
            SAMPLE=steps.sample,
            TILE=steps.select["tile"],
            PARTS=steps.parts,
            POOL=a.pool,
            TAIL=a.tail,
            PAGE=PAGE_TOKENS if placed else 0,
            num_warps=steps.select["warps"],
        )


def _require(
    a: IndexSelectAttributes,
    steps: Plan,
    q: Tensor,
    keys: Tensor,
    weights: Tensor | None,
    out: Tensor,
    flag: Tensor,
    scratch: Tensor,
    batch: Batch,
    q_scales: Tensor | None,
    key_scales: Tensor | None,
    placed: bool,
) -> None:
    rows = q.shape[0]
    require(a.dim in DIMS, KERNEL, f"dim in {DIMS}, not {a.dim}")
    require(a.heads <= MAX_HEADS, KERNEL, f"at most {MAX_HEADS} heads, not {a.heads}")
    require(a.budget <= MAX_BUDGET, KERNEL, f"a budget of at most {MAX_BUDGET}, not {a.budget}")
    require((q_scales is None) == (key_scales is None), KERNEL, "scales for both queries and keys or for neither")
    dtypes: tuple[Any, ...] = DTYPES if key_scales is None else tuple(QUANTISED)
    require_tensor(KERNEL, "q", q, (rows, a.heads * a.dim), dtypes)
    require_tensor(KERNEL, "keys", keys, (None, a.dim), (q.dtype,))
    require(keys.stride(0) < 2**20, KERNEL, "keys at most 2^20 numbers apart")
    if q_scales is not None and key_scales is not None:
        require_tensor(KERNEL, "q_scales", q_scales, (rows, a.heads * a.dim // GROUP), (torch.uint8,))
        groups = a.dim // GROUP
        require_tensor(KERNEL, "key_scales", key_scales, (keys.shape[0], groups), (torch.uint8,))
        require(key_scales.stride(0) < 2**20, KERNEL, "key_scales at most 2^20 numbers apart")
        pairs = all(x.stride(0) % 2 == 0 and x.storage_offset() % 2 == 0 for x in (q, keys))
        require(pairs, KERNEL, "quantised q and keys whose rows begin at even bytes")
        whole = key_scales.stride(0) % groups == 0 and key_scales.storage_offset() % groups == 0
        require(whole, KERNEL, f"key_scales whose rows begin at multiples of {groups} bytes")
    require((weights is not None) == (a.score == "relu_weighted"), KERNEL, f"weights as score {a.score} has them")
    if weights is not None:
        require_tensor(KERNEL, "weights", weights, (rows, a.heads), DTYPES)
    require_tensor(KERNEL, "out", out, (rows, None if placed else a.width), (torch.int64, torch.int32))
    require(out.shape[1] >= a.width, KERNEL, f"out of at least {a.width} columns")
    require_tensor(KERNEL, "flag", flag, (1,), (torch.int32,))
    require(batch.sequences > 0, KERNEL, "at least one sequence")
    require_batch(KERNEL, batch)
    tensors = (q, keys, weights, out, flag, scratch, q_scales, key_scales, batch.page_table)
    require(len({t.device for t in tensors if t is not None}) == 1, KERNEL, "all tensors on one device")
    candidates = batch.page_table.shape[1] * PAGE_TOKENS // a.pool
    blocks = rows if steps.together == 1 else rows // steps.together + batch.sequences
    fits = (steps.k, steps.candidates, steps.blocks) == (a.budget // a.pool, candidates, blocks)
    require(fits and steps.list >= 2 * steps.k, KERNEL, "the plan of these attributes and this batch")
    require_tensor(KERNEL, "scratch", scratch, (steps.scratch,), (torch.int32,))


def require_batch(kernel: str, batch: Batch) -> None:
    """The batch's tensors as the kernels read them: int64, contiguous along their last axis."""
    sequences = batch.sequences
    require_tensor(kernel, "cu_seqlens", batch.cu_seqlens, (sequences + 1,), (torch.int64,))
    require_tensor(kernel, "context_lens", batch.context_lens, (sequences,), (torch.int64,))
    require_tensor(kernel, "slots", batch.slots, (sequences,), (torch.int64,))
    require_tensor(kernel, "page_table", batch.page_table, (sequences, None), (torch.int64,))
