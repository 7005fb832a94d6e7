# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""New entries to their places in paged pools, as a Triton kernel; triton_attention_launch.py calls it."""

import triton
import triton.language as tl

from day0.kernels.common.triton_attention import pool_rows, query_block


@triton.jit
def write_entries(
    first,
    second,
    first_pool,
    second_pool,
    cu_seqlens,
    context_lens,
    page_table,
    rows,
    sequences,
    first_row,
    second_row,
    first_pool_row,
    second_pool_row,
    table_row,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Each new token's entries to its place in two pools of FIRST and SECOND channels. Grid: [rows, pools]."""
    sequence, start, row, _ = query_block(cu_seqlens, sequences, rows, tl.program_id(0), 1, BS)
    if sequence >= sequences:
        return
    position = tl.load(context_lens + sequence).to(tl.int32) + row - start
    to = pool_rows(page_table, table_row, sequence, position, position >= 0, PAGE).to(tl.int64)
    if tl.program_id(1) == 0:
        for begin in tl.static_range(0, FIRST, BC):
            channel = begin + tl.arange(0, BC)
            entry = tl.load(first + row.to(tl.int64) * first_row + channel, mask=channel < FIRST)
            tl.store(first_pool + to * first_pool_row + channel, entry, mask=channel < FIRST)
    else:
        for begin in tl.static_range(0, SECOND, BC):
            channel = begin + tl.arange(0, BC)
            entry = tl.load(second + row.to(tl.int64) * second_row + channel, mask=channel < SECOND)
            tl.store(second_pool + to * second_pool_row + channel, entry, mask=channel < SECOND)
