"""Launches the fused choice of candidates: scores and block-wise candidates, then a merge where blocks were split."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton import cdiv

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Space, size_bucket
from day0.kernels.index_select import triton_scores
from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.index_select.triton_scores import merge_kernel, score_kernel
from day0.kernels.interface.batch import PAGE_TOKENS, Batch

KERNEL = "index_select/triton"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DIMS = (32, 64, 128, 256)
MAX_HEADS = 128
MAX_BUDGET = 4096
QUANTISED = {torch.uint8: "e4m3", torch.int8: "int8"}
GROUP = 32  # channels that share a scale

# rows: query rows a program scores together; block: candidates per product (16 * warps, see `score_kernel`); tiles:
# blocks in a window; waves: programs per multiprocessor when candidates are split. The first of each holds the largest
# budget beside one new block.
SCORES = Space(
    "index_select.scores",
    triton_scores.__file__,
    (
        {"rows": 1, "block": 128, "tiles": 64, "warps": 8, "stages": 3, "waves": 1},
        {"rows": 1, "block": 128, "tiles": 32, "warps": 8, "stages": 3, "waves": 2},
        {"rows": 1, "block": 64, "tiles": 64, "warps": 4, "stages": 4, "waves": 2},
        {"rows": 1, "block": 64, "tiles": 64, "warps": 4, "stages": 3, "waves": 4},
        {"rows": 1, "block": 128, "tiles": 16, "warps": 8, "stages": 3, "waves": 4},
        {"rows": 1, "block": 64, "tiles": 32, "warps": 4, "stages": 3, "waves": 4},
        {"rows": 2, "block": 128, "tiles": 32, "warps": 8, "stages": 3, "waves": 2},
        {"rows": 4, "block": 128, "tiles": 32, "warps": 8, "stages": 2, "waves": 1},
        {"rows": 2, "block": 256, "tiles": 16, "warps": 16, "stages": 2, "waves": 1},
        {"rows": 2, "block": 64, "tiles": 64, "warps": 4, "stages": 3, "waves": 2},
    ),
)
MERGE = Space(
    "index_select.merge",
    triton_scores.__file__,
    (
        {"block": 128, "tiles": 64, "warps": 8},
        {"block": 128, "tiles": 64, "warps": 16},
        {"block": 128, "tiles": 128, "warps": 16},
        {"block": 128, "tiles": 128, "warps": 32},
        {"block": 128, "tiles": 32, "warps": 8},
    ),
)
Config = Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """The launches for a shape: everything follows from the extents of tensors, nothing from what is in them.

    `levels` are the merges: how many groups each leaves of a row's segments; the last leaves one, the result.
    """

    scores: Config
    merge: Config
    k: int
    blocks: int
    splits: int
    segment: int
    levels: tuple[int, ...]

    @property
    def areas(self) -> tuple[int, ...]:
        """int32 numbers per row that each step leaves for the next."""
        steps = () if self.splits == 1 else (self.splits * 2 * self.segment,)
        return steps + tuple(groups * 2 * self.k for groups in self.levels[:-1])


def plan(
    a: IndexSelectAttributes,
    batch: Batch,
    rows: int,
    element_size: int,
    device: torch.device,
    *,
    scores: Config | None = None,
    merge: Config | None = None,
) -> Plan:
    """The launches for `rows` query rows of a batch; configurations that are not given are those measured."""
    k = a.budget // a.pool
    candidates = batch.page_table.shape[1] * PAGE_TOKENS // a.pool
    shape = bucket(a, batch, rows, element_size)
    if scores is None:
        scores = fitting(SCORES.config(shape), a.dim * element_size)
    block = scores["block"]
    blocks = rows if scores["rows"] == 1 else rows // scores["rows"] + batch.sequences
    splits = max(1, min(scores["waves"] * multiprocessors(device) // max(blocks, 1), cdiv(candidates, block)))
    chunk = cdiv(cdiv(candidates, block), splits) * block
    if cdiv(k, block) >= scores["tiles"] and chunk > block * scores["tiles"]:
        # A window that the best k fill leaves no room for new candidates.
        largest = fitting(SCORES.configs[0], a.dim * element_size)
        return plan(a, batch, rows, element_size, device, scores=largest, merge=merge)
    scores = {**scores, "tiles": min(scores["tiles"], next_power_of_2(chunk // block))}
    if merge is None:
        merge = MERGE.config(shape)
    if splits == 1:
        return Plan(scores, merge, k, blocks, 1, k, ())
    segment = min(k, chunk)
    levels, slots = [], splits * segment
    merge = {**merge, "tiles": min(merge["tiles"], next_power_of_2(cdiv(max(slots, k + 1), merge["block"])))}
    width = merge["block"] * merge["tiles"]
    # While one program a row would go over many windows and others are idle, groups of segments are merged first.
    while slots > width and rows * cdiv(slots, width) <= 2 * multiprocessors(device) and cdiv(slots, width) * k < slots:
        levels.append(cdiv(slots, width))
        slots = levels[-1] * k
    return Plan(scores, merge, k, blocks, splits, segment, (*levels, 1))


def bucket(a: IndexSelectAttributes, batch: Batch, rows: int, element_size: int) -> tuple[int | str, ...]:
    """What shares a measured configuration."""
    candidates = batch.page_table.shape[1] * PAGE_TOKENS // a.pool
    sizes = size_bucket(rows), size_bucket(batch.sequences), size_bucket(candidates)
    return (batch.phase, a.heads, a.dim, a.budget, a.pool, element_size, *sizes)


def fitting(config: Config, row_bytes: int) -> Config:
    """The configuration with as few stages as its keys' tiles need to stay within shared memory."""
    room = 144 * 1024 // (config["block"] * row_bytes)
    return {**config, "stages": max(1, min(config["stages"], room))}


@cache
def multiprocessors(device: torch.device) -> int:
    """Of the device; interpreted, a number small enough for small tests to go over all paths."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 8


def workspace(steps: Plan, rows: int, device: torch.device) -> Tensor:
    """Scratch for `choose`: int32, what is in it does not matter before or after."""
    return torch.empty(rows * sum(steps.areas), dtype=torch.int32, device=device)


def choose(
    a: IndexSelectAttributes,
    steps: Plan,
    q: Tensor,  # [N, heads * dim]
    keys: Tensor,  # [pool rows, dim], the new ones in it
    weights: Tensor | None,  # [N, heads]
    out: Tensor,  # [N, width] int64
    flag: Tensor,  # [1] int32: set to 1 if the score of a visible candidate is NaN, else left alone
    scratch: Tensor,  # see `workspace`
    *,
    batch: Batch,
    q_scales: Tensor | None = None,  # [N, heads * dim // 32] uint8
    key_scales: Tensor | None = None,  # [pool rows, dim // 32] uint8
) -> None:
    """Writes for each query what the reference's `select` gives: ascending tokens, then -1; padded rows all -1.

    NaN counts as the largest score, equal to itself. A query that sees no more than the budget is not scored, so NaN
    there raises no flag. With scales, q and keys are uint8 (e4m3) or int8 and mean value * 2^(scale - 127), one scale
    for 32 channels. Raises ContractError before anything is launched.
    """
    rows = q.shape[0]
    _require(a, steps, q, keys, weights, out, flag, scratch, batch, q_scales, key_scales)
    if rows == 0:
        return
    quantised = "" if key_scales is None else QUANTISED[keys.dtype]
    # The interpreter multiplies bfloat16 wrongly, and dequantised values are exact in either.
    exact = tl.bfloat16 if q.is_cuda else tl.float32
    numbers = out.view(torch.int32)
    final = steps.splits == 1
    areas = list(scratch.split([rows * n for n in steps.areas]))
    found = numbers if final else areas[0].view(rows, -1)
    scores, head_weights = steps.scores, q if weights is None else weights
    score_kernel[(steps.blocks, steps.splits)](
        q,
        q if q_scales is None else q_scales,
        head_weights,
        keys,
        keys if key_scales is None else key_scales,
        batch.page_table,
        batch.cu_seqlens,
        batch.context_lens,
        found,
        out,
        flag,
        rows,
        batch.sequences,
        steps.k,
        steps.segment,
        a.width,
        a.scale * a.weight_scale,
        q.stride(0),
        0 if q_scales is None else q_scales.stride(0),
        head_weights.stride(0),
        keys.stride(0),
        0 if key_scales is None else key_scales.stride(0),
        batch.page_table.stride(0),
        found.stride(0),
        2 * steps.segment,
        out.stride(0),
        HEADS=a.heads,
        H=max(16, next_power_of_2(a.heads)),
        D=a.dim,
        R=scores["rows"],
        B=scores["block"],
        T=scores["tiles"],
        ENTRIES=PAGE_TOKENS // a.pool,
        POOL=a.pool,
        TAIL=a.tail,
        WEIGHTED=weights is not None,
        QUANTISED=quantised,
        FINAL=final,
        compute=exact,
        num_warps=scores["warps"],
        num_stages=scores["stages"],
    )
    segments, segment = steps.splits, steps.segment
    for level, groups in enumerate(steps.levels):
        last = level == len(steps.levels) - 1
        merged = numbers if last else areas[level + 1].view(rows, -1)
        merge_kernel[(rows, groups)](
            found,
            batch.cu_seqlens,
            batch.context_lens,
            merged,
            out,
            rows,
            batch.sequences,
            segments,
            cdiv(segments, groups),
            steps.k,
            steps.k,
            a.width,
            found.stride(0),
            merged.stride(0),
            2 * steps.k,
            out.stride(0),
            SEGMENT=segment,
            B=steps.merge["block"],
            T=steps.merge["tiles"],
            POOL=a.pool,
            TAIL=a.tail,
            FINAL=last,
            num_warps=steps.merge["warps"],
        )
        found, segments, segment = merged, groups, steps.k


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
) -> None:
    rows = q.shape[0]
    require(a.dim in DIMS, KERNEL, f"dim in {DIMS}, not {a.dim}")
    require(a.heads <= MAX_HEADS, KERNEL, f"at most {MAX_HEADS} heads, not {a.heads}")
    require(a.budget <= MAX_BUDGET, KERNEL, f"a budget of at most {MAX_BUDGET}, not {a.budget}")
    require((q_scales is None) == (key_scales is None), KERNEL, "scales for both queries and keys or for neither")
    dtypes: tuple[Any, ...] = DTYPES if key_scales is None else tuple(QUANTISED)
    require_tensor(KERNEL, "q", q, (rows, a.heads * a.dim), dtypes)
    require_tensor(KERNEL, "keys", keys, (None, a.dim), (q.dtype,))
    if q_scales is not None and key_scales is not None:
        require_tensor(KERNEL, "q_scales", q_scales, (rows, a.heads * a.dim // GROUP), (torch.uint8,))
        require_tensor(KERNEL, "key_scales", key_scales, (keys.shape[0], a.dim // GROUP), (torch.uint8,))
    require((weights is not None) == (a.score == "relu_weighted"), KERNEL, f"weights as score {a.score} has them")
    if weights is not None:
        require_tensor(KERNEL, "weights", weights, (rows, a.heads), DTYPES)
    require_tensor(KERNEL, "out", out, (rows, a.width), (torch.int64,))
    require(out.is_contiguous(), KERNEL, "a contiguous result")
    require_tensor(KERNEL, "flag", flag, (1,), (torch.int32,))
    require_tensor(KERNEL, "scratch", scratch, (rows * sum(steps.areas),), (torch.int32,))
    require(batch.sequences > 0, KERNEL, "at least one sequence")
    require_batch(KERNEL, batch)
    tensors = (q, keys, weights, out, flag, scratch, q_scales, key_scales, batch.page_table)
    require(len({t.device for t in tensors if t is not None}) == 1, KERNEL, "all tensors on one device")
    block, candidates = steps.scores["block"], batch.page_table.shape[1] * PAGE_TOKENS // a.pool
    chunk = cdiv(cdiv(candidates, block), steps.splits) * block
    fits = cdiv(steps.k, block) < steps.scores["tiles"] or chunk <= block * steps.scores["tiles"]
    require(fits, KERNEL, "a larger window")
    require(steps.merge["block"] * steps.merge["tiles"] > steps.k, KERNEL, "a larger window to merge in")


def require_batch(kernel: str, batch: Batch) -> None:
    """The batch's tensors as the kernels read them: int64, contiguous along their last axis."""
    sequences = batch.sequences
    require_tensor(kernel, "cu_seqlens", batch.cu_seqlens, (sequences + 1,), (torch.int64,))
    require_tensor(kernel, "context_lens", batch.context_lens, (sequences,), (torch.int64,))
    require_tensor(kernel, "slots", batch.slots, (sequences,), (torch.int64,))
    require_tensor(kernel, "page_table", batch.page_table, (sequences, None), (torch.int64,))
