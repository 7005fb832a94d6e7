# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Index scores of paged keys and the best of them, block by block: the scores stay in registers."""

import triton
import triton.language as tl

from day0.kernels.index_select.triton_best import (
    NOTHING,
    best,
    entry_of,
    first_row,
    ordered,
    sequence_of,
    write_rest,
    write_tokens,
)


@triton.jit
def dequantised(values, exponents, M: tl.constexpr, D: tl.constexpr, FP8: tl.constexpr, compute: tl.constexpr):
    """values [M, D] uint8 (e4m3 bits) or int8 times 2^(exponents [M, D // 32] - 127); exact in bfloat16."""
    if FP8:
        values = values.to(tl.float8e4nv, bitcast=True)
    scales = (exponents.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    grouped = tl.reshape(values.to(tl.float32), [M, D // 32, 32]) * scales[:, :, None]
    return tl.reshape(grouped, [M, D]).to(compute)


@triton.jit
def score_kernel(
    q,  # [N, HEADS * D]
    q_scales,  # [N, HEADS * D // 32] uint8 exponents where QUANTISED
    weights,  # [N, HEADS] where WEIGHTED
    keys,  # [pool rows, D]
    key_scales,  # [pool rows, D // 32] uint8 exponents where QUANTISED
    page_table,  # [S, P]
    cu_seqlens,  # [S + 1]
    context_lens,  # [S]
    found,  # int32: per row and split 2 * segment numbers, keys then ids; the row of the result itself where FINAL
    out,  # [N, width] int64 where FINAL
    flag,  # [1] int32
    tokens,  # N
    sequences,  # S
    k,
    segment,
    width,
    scale,
    q_stride,
    q_scale_stride,
    weight_stride,
    key_stride,
    key_scale_stride,
    page_stride,
    found_row_stride,
    found_split_stride,
    out_stride,
    HEADS: tl.constexpr,
    H: tl.constexpr,  # HEADS up to a power of 2
    D: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    T: tl.constexpr,
    ENTRIES: tl.constexpr,  # candidates per page
    POOL: tl.constexpr,
    TAIL: tl.constexpr,
    WEIGHTED: tl.constexpr,
    QUANTISED: tl.constexpr,  # "", "e4m3", "int8"
    FINAL: tl.constexpr,
    compute: tl.constexpr,
):
    """Programs (block of R query rows, split of what they see): the split's best min(k, its size) candidates.

    A window of T * B candidates is scored, reduced to its best k, and these share the next window with the candidates
    that follow. With relu(scale x) = scale relu(x) the scale goes into the head weights. Each score is one dot product
    per head over all of D and one sum over heads whose order the layout of B = 16 * num_warps rows fixes: it does not
    depend on splits, windows or neighbours.
    """
    # The last blocks see most in a causal prefill: they go first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    split = tl.program_id(1)
    splits = tl.num_programs(1)
    sequence = sequence_of(block, cu_seqlens, sequences, R)
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    row = first_row(block, start, sequence, R) + tl.arange(0, R)
    # Rows behind the last sequence are padding: they get -1.
    written = row < tl.where(sequence == sequences - 1, tokens, end)
    owned = row < end
    position = tl.where(owned, tl.load(context_lens + sequence) + row - start, -1)
    visible = ((position + 1) // POOL).to(tl.int32)
    most = tl.max(visible, axis=0)
    if tl.max(written.to(tl.int32), axis=0) == 0:
        return
    out_rows = out + row * out_stride
    slot = (tl.arange(0, T)[:, None] * B + tl.arange(0, B)[None, :])[None, :, :]
    if most <= k:
        # All is chosen whatever its score; where splits are merged, the merge sees it too.
        if FINAL:
            for at in range(0, most, T * B):
                ids = at + slot
                write_tokens(out_rows[:, None, None], ids < visible[:, None, None], ids, ids, POOL)
            write_rest(out_rows, position, visible, width, written, POOL, TAIL, B)
        return

    head = tl.arange(0, R * H) % H
    query = tl.arange(0, R * H) // H
    query_row = first_row(block, start, sequence, R) + query
    used = (head < HEADS) & (query_row < end)
    channel = tl.arange(0, D)
    q_at = q + query_row[:, None] * q_stride + head[:, None] * D + channel[None, :]
    queries = tl.load(q_at, mask=used[:, None], other=0)
    if QUANTISED != "":
        group = tl.arange(0, D // 32)
        s_at = q_scales + query_row[:, None] * q_scale_stride + head[:, None] * (D // 32) + group[None, :]
        q_exponents = tl.load(s_at, mask=used[:, None], other=0)
        queries = dequantised(queries, q_exponents, R * H, D, QUANTISED == "e4m3", compute)
    queries = tl.trans(queries)
    share = tl.full([R * H], 1.0, tl.float32)
    if WEIGHTED:
        share = tl.load(weights + query_row * weight_stride + head, mask=used, other=0.0).to(tl.float32)
    share = share * scale

    per_split = tl.cdiv(tl.cdiv(most, B), splits) * B
    base = split * per_split
    last = tl.minimum(base + per_split, most)
    mine = found + row * found_row_stride + split * found_split_stride
    mine = mine[:, None, None]
    carried = 0  # tiles of the window that hold what earlier windows gave
    nan = tl.zeros([B, R], tl.int32)
    going = 1
    while going > 0:
        window = tl.full([R, T, B], NOTHING, tl.int32)
        if carried > 0:
            window = tl.load(mine + slot, mask=owned[:, None, None] & (slot < k), other=NOTHING)
        fresh = tl.minimum(tl.cdiv(tl.maximum(last - base, 0), B), T - carried)
        for i in range(0, fresh):
            candidate = base + i * B + tl.arange(0, B)
            seen = candidate < last
            entry = entry_of(page_table + sequence * page_stride, candidate, seen, ENTRIES)
            tile = tl.load(keys + entry[:, None] * key_stride + channel[None, :], mask=seen[:, None], other=0)
            if QUANTISED != "":
                e_at = key_scales + entry[:, None] * key_scale_stride + tl.arange(0, D // 32)[None, :]
                exponents = tl.load(e_at, mask=seen[:, None], other=0)
                tile = dequantised(tile, exponents, B, D, QUANTISED == "e4m3", compute)
            hits = tl.maximum(tl.dot(tile, queries, input_precision="ieee"), 0.0, propagate_nan=tl.PropagateNan.ALL)
            hits = hits * share[None, :]
            if H != HEADS:
                # An infinite key makes NaN of the padding heads' zeros.
                hits = tl.where((head < HEADS)[None, :], hits, 0.0)
            scores = tl.sum(tl.reshape(hits, [B, R, H]), axis=2)
            counts = seen[:, None] & (candidate[:, None] < visible[None, :])
            nan = nan | (counts & (scores != scores)).to(tl.int32)
            fresh_keys = tl.trans(tl.where(counts, ordered(scores), NOTHING))
            here = (tl.arange(0, T) == carried + i)[None, :, None]
            window = tl.where(here, fresh_keys[:, None, :], window)
        keep, place, count = best(window, k, R, T * B)
        old = slot < carried * B
        ids = tl.load(mine + segment + slot, mask=owned[:, None, None] & old & (slot < k), other=0)
        ids = tl.where(old, ids, base + slot - carried * B)
        base += fresh * B
        # What is overwritten now has been read by all threads, and what is written is read by others below.
        tl.debug_barrier()
        going = (base < last).to(tl.int32)
        if FINAL and going == 0:
            write_tokens(out_rows[:, None, None], keep, place, ids, POOL)
            write_rest(out_rows, position, count, width, written, POOL, TAIL, B)
        else:
            keep = keep & owned[:, None, None]
            tl.store(mine + place, window, mask=keep)
            tl.store(mine + segment + place, ids, mask=keep)
            unused = owned[:, None, None] & (slot >= count[:, None, None]) & (slot < segment)
            tl.store(mine + slot, tl.full([R, T, B], NOTHING, tl.int32), mask=unused)
        tl.debug_barrier()
        carried = tl.cdiv(k, B)
    if tl.max(tl.max(nan, axis=1), axis=0) > 0:
        tl.store(flag, 1)


@triton.jit
def merge_kernel(
    found,  # int32 [N, segments, 2 * SEGMENT]: keys (NOTHING: none) and ids, in the order of the candidates
    cu_seqlens,  # [S + 1]
    context_lens,  # [S]
    merged,  # int32, as `found` with segments of 2 * segment numbers; the row of the result itself where FINAL
    out,  # [N, width] int64 where FINAL
    tokens,
    sequences,
    segments,
    per_group,
    k,
    segment,
    width,
    found_row_stride,
    merged_row_stride,
    merged_group_stride,
    out_stride,
    SEGMENT: tl.constexpr,
    B: tl.constexpr,
    T: tl.constexpr,
    POOL: tl.constexpr,
    TAIL: tl.constexpr,
    FINAL: tl.constexpr,
):
    """Programs (query row, group of `per_group` segments): the best min(k, all) candidates of the group's segments."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    group = tl.program_id(1)
    sequence = sequence_of(tl.program_id(0), cu_seqlens, sequences, 1)
    start = tl.load(cu_seqlens + sequence)
    owned = row < tl.load(cu_seqlens + sequence + 1)
    position = tl.where(owned, tl.load(context_lens + sequence) + row - start, -1)
    visible = ((position + 1) // POOL).to(tl.int32)
    out_rows = out + row * out_stride
    slot = (tl.arange(0, T)[:, None] * B + tl.arange(0, B)[None, :])[None, :, :]
    if tl.max(visible, axis=0) <= k:
        if FINAL:
            write_tokens(out_rows[:, None, None], slot < visible[:, None, None], slot, slot, POOL)
            write_rest(out_rows, position, visible, width, owned | True, POOL, TAIL, B)
        return

    at = group * per_group * SEGMENT
    last = tl.minimum(at + per_group * SEGMENT, segments * SEGMENT)
    source = (found + row * found_row_stride)[:, None, None]
    mine = (merged + row * merged_row_stride + group * merged_group_stride)[:, None, None]
    carried = 0
    going = 1
    while going > 0:
        old = slot < carried
        position_in = at + slot - carried
        inside = (position_in < last) & ~old
        address = source + position_in // SEGMENT * (2 * SEGMENT) + position_in % SEGMENT
        window = tl.load(address, mask=inside, other=NOTHING)
        ids = tl.load(address + SEGMENT, mask=inside, other=0)
        if carried > 0:
            window = tl.where(old, tl.load(mine + slot, mask=old, other=NOTHING), window)
            ids = tl.where(old, tl.load(mine + segment + slot, mask=old, other=0), ids)
        keep, place, count = best(window, k, 1, T * B)
        at += T * B - carried
        tl.debug_barrier()
        going = (at < last).to(tl.int32)
        if FINAL and going == 0:
            write_tokens(out_rows[:, None, None], keep, place, ids, POOL)
            write_rest(out_rows, position, count, width, owned, POOL, TAIL, B)
        else:
            tl.store(mine + place, window, mask=keep)
            tl.store(mine + segment + place, ids, mask=keep)
            unused = (slot >= count[:, None, None]) & (slot < segment)
            tl.store(mine + slot, tl.full([1, T, B], NOTHING, tl.int32), mask=unused)
        tl.debug_barrier()
        carried = k
