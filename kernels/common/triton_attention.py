# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Softmax attention to rows of paged pools, as Triton kernels; triton_attention_launch.py calls them.

One program reads one part ("split") of what a block of queries attends to, with a running maximum and sum (online
softmax, arXiv 1805.02867; tiles as in arXiv 2205.14135); `merge` joins the parts by their log-sum-exp. Queries of a
block are those of up to BT tokens of one sequence and BH query heads that share a key head, so that a key read once
serves all of them. Scores are in base 2: the scale comes multiplied by log2(e).
"""

import triton
import triton.language as tl

from day0.kernels.common.triton_math import (
    await_launch_before,
    exp2_fast,
    let_next_launch_start,
    log2_fast,
    pairs_of_float8,
    pairs_of_int8,
    prefetch,
    prefetch_to_l2,
)


@triton.jit
def query_block(cu_seqlens, sequences, rows, program, BT: tl.constexpr, BS: tl.constexpr):
    """(sequence, its first row, the block's first row, its number of rows) of a program; none left: a number <= 0.

    For BT > 1 sequence s has the programs from cu[s] // BT + s on: as many as it needs for any lengths, and their
    place needs no sum over the sequences before. Rows past the last sequence count as those of one sequence more.
    """
    s = tl.arange(0, BS)
    ends = tl.load(cu_seqlens + 1 + s, mask=s < sequences, other=0).to(tl.int32)
    if BT > 1:
        ends = ends // BT + s + 1
    sequence = tl.sum(((ends <= program) & (s < sequences)).to(tl.int32))
    start = tl.load(cu_seqlens + sequence).to(tl.int32)
    end = tl.load(cu_seqlens + sequence + 1, mask=sequence < sequences, other=rows).to(tl.int32)
    if BT > 1:
        first = start + (program - start // BT - sequence) * BT
    else:
        first = program
    return sequence, start, first, tl.minimum(end - first, BT)


@triton.jit
def pool_rows(page_table, table_row, sequence, position, inside, PAGE: tl.constexpr):
    """Flat pool rows (int32, the launcher sees to it) of a sequence's positions; -1 where not `inside`."""
    page = tl.load(page_table + sequence.to(tl.int64) * table_row + position // PAGE, mask=inside, other=-1)
    return tl.where(inside, page.to(tl.int32) * PAGE + position % PAGE, -1)


@triton.jit
def _chosen(indices, column, end):
    """Listed positions (int32) of columns; past the end: -1. What int32 cannot hold is no position either: -2."""
    chosen = tl.load(indices + column, mask=column < end, other=-1)
    return tl.where((chosen < -1) | (chosen > 2**31 - 1), -2, chosen).to(tl.int32)


@triton.jit
def _place_listed(
    indices, places, lo, hi, until, page_table, table_row, sequence, own, PAGE: tl.constexpr, B: tl.constexpr
):
    """Pool rows of the positions in columns [lo, hi) of a list to `places`, and -1 in the columns up to `until`.

    A hole is -1, and what is no position up to the query's own -2. Afterwards all threads of the program may read them.
    """
    for begin in tl.range(lo, until, B, num_stages=1):
        column = begin + tl.arange(0, B)
        chosen = _chosen(indices, column, hi)
        seen = (chosen >= 0) & (chosen <= own)
        row = pool_rows(page_table, table_row, sequence, tl.where(seen, chosen, 0), seen, PAGE)
        row = tl.where((chosen < -1) | (chosen > own), -2, row)
        tl.store(places + column, row, mask=column < until)
    tl.debug_barrier()


@triton.jit
def _tile(pool, rows, seen, row_stride, D: tl.constexpr, B: tl.constexpr):
    """[rows, B] entries of rows from `pool` on; zero past D channels and where not seen: there nothing is read."""
    channel = tl.arange(0, B)
    at = pool + ((rows * row_stride)[:, None] + channel[None, :])
    if D == B:
        return tl.load(at, mask=seen[:, None], other=0.0)
    else:
        return tl.load(at, mask=seen[:, None] & (channel < D)[None, :], other=0.0)


@triton.jit
def _fetch(pool, rows, row_stride, D: tl.constexpr, B: tl.constexpr):
    """Asks for listed rows of 16-bit entries, line by line."""
    channel = tl.arange(0, B // 16 if B < 64 else B // 64) * (16 if B < 64 else 64)
    at = pool + (rows.to(tl.int64) * row_stride)[:, None] + channel[None, :]
    prefetch_to_l2(at, (rows >= 0)[:, None] & (channel < D)[None, :])


@triton.jit
def _scales(scales, rows, seen, row_stride, TILES: tl.constexpr):
    """[rows, TILES] scales of quantised entries."""
    at = scales + ((rows * row_stride)[:, None] + tl.arange(0, TILES)[None, :])
    return tl.load(at, mask=seen[:, None], other=0.0)


@triton.jit
def _scale_of_each(scales, rows, seen, row_stride):
    """[rows] scales of entries that have one each."""
    return tl.load(scales + rows * row_stride, mask=seen, other=0.0)


@triton.jit
def _halves(pairs, FLOAT8: tl.constexpr, NARROW: tl.constexpr):
    """The even and the odd channels of quantised entries read two by two, as int16 [rows, channels / 2].

    Products take 16 bits from shared memory in whatever order they want, but not 8: pairs go there as they came, and
    each thread parts what it got.
    """
    if FLOAT8:
        even, odd = pairs_of_float8(pairs)
    else:
        even, odd = pairs_of_int8(pairs)
    return even.to(NARROW), odd.to(NARROW)


@triton.jit
def _dequantised(x, scales, DTYPE: tl.constexpr, TILES: tl.constexpr):
    """x [rows, TILES * width] times its tile's scale."""
    ROWS: tl.constexpr = x.shape[0]
    WIDTH: tl.constexpr = x.shape[1] // TILES
    tiles = tl.reshape(x.to(tl.float32), (ROWS, TILES, WIDTH)) * scales[:, :, None]
    return tl.reshape(tiles, (ROWS, TILES * WIDTH)).to(DTYPE)


@triton.jit
def _weigh(
    query,
    query_odd,
    query_r,
    key,
    key_odd,
    key_r,
    scale,
    factor,
    added,
    worth,
    position,
    own,
    most,
    total,
    BT: tl.constexpr,
    DR: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """(weights [queries, positions], what the sums so far are worth, the maximum, the sums) after a tile.

    PAIRS: the products of odd channels come on top. `factor` scales the products with keys, `scale` those with rope
    keys; `added` goes to the scores of a position, and a weight counts `worth` times in the sum.
    """
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if PAIRS:
        scores = tl.dot(query_odd, tl.trans(key_odd), scores, input_precision="ieee")
    scores *= factor
    if DR > 0:
        scores += tl.dot(query_r, tl.trans(key_r), input_precision="ieee") * scale
    scores += added[None, :]
    if BT > 1:
        scores = tl.where(position[None, :] <= own[:, None], scores, float("-inf"))
    highest = tl.maximum(most, tl.max(scores, 1))
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weight = exp2_fast(scores - shift[:, None])
    kept = exp2_fast(most - shift)
    return weight, kept, highest, total * kept[:, None] + weight * worth


@triton.jit
def attend(
    q,
    q_rope,
    keys,
    rope_keys,
    values,
    key_scales,
    value_scales,
    indices,
    places,
    out,
    sums,
    cu_seqlens,
    context_lens,
    page_table,
    scale,
    rows,
    sequences,
    splits,
    width,
    q_row,
    q_head,
    qr_row,
    qr_head,
    k_row,
    k_head,
    r_row,
    v_row,
    v_head,
    ks_row,
    ks_head,
    vs_row,
    vs_head,
    i_row,
    p_row,
    o_row,
    o_head,
    o_split,
    s_row,
    s_head,
    table_row,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    DR: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
    BN: tl.constexpr,
    BS: tl.constexpr,
    PAGE: tl.constexpr,
    LISTED: tl.constexpr,
    SHARED: tl.constexpr,
    TILES: tl.constexpr,
    SPLIT: tl.constexpr,
    FLOAT8: tl.constexpr,
    APART: tl.constexpr,
    FETCH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Grid: [blocks of tokens x splits x blocks of heads], heads fastest: they read neighbouring bytes.

    LISTED: positions come from `indices` [rows, width], and their pool rows go to `places` first, so that a tile waits
    for one look-up only (without `indices` they are there, in whole tiles); else they are all up to the query's own.
    SHARED: values are the keys (latents). DR > 0: keys go on with the row's rope key, which all heads share. TILES > 0:
    keys and values are quantised (FLOAT8: to e4m3, else to int8), with a scale for each of TILES tiles of a row; with
    one, keys and values are pairs of channels as int16. SPLIT: `out` has an axis of splits,
    and `sums` takes each part's log2 of the sum of exponentials; else `out` is the result. APART: the weights come from
    a branch that is always taken. The compiler lays the warps of a product that goes into another one along its rows,
    so that with 64 rows the second half repeats the work of the first; from a branch it does not see where the product
    goes. FETCH: listed rows of the next tile are asked for at the start of one, where their copies to shared memory are
    sent off at its end only (two stages). EARLY: `places` are written by the launch before, which may still be at it.
    """
    GROUP_BLOCKS: tl.constexpr = (GROUP + BH - 1) // BH
    HEAD_BLOCKS: tl.constexpr = KV_HEADS * GROUP_BLOCKS
    M: tl.constexpr = BT * BH
    DTYPE: tl.constexpr = q.dtype.element_ty
    # Both forms become float16 in half the instructions that bfloat16 takes, and exactly. Queries come without
    # their largest factor, so that float16 holds them too.
    PAIRS: tl.constexpr = TILES == 1
    WIDE: tl.constexpr = 2 if PAIRS else 1
    NARROW: tl.constexpr = tl.float16 if PAIRS and DTYPE == tl.bfloat16 else DTYPE
    program = tl.program_id(0)
    kv_head = program % HEAD_BLOCKS // GROUP_BLOCKS
    split = program // HEAD_BLOCKS % splits
    # Later tokens see more: the longest programs go first.
    block = tl.num_programs(0) // (HEAD_BLOCKS * splits) - 1 - program // (HEAD_BLOCKS * splits)
    sequence, start, first, count = query_block(cu_seqlens, sequences, rows, block, BT, BS)
    if count <= 0:
        if EARLY:
            await_launch_before()
        return
    in_group = program % GROUP_BLOCKS * BH + tl.arange(0, M) % BH
    token = tl.arange(0, M) // BH
    live = (in_group < GROUP) & (token < count)
    head = (kv_head * GROUP + in_group).to(tl.int64)
    row = (first + token).to(tl.int64)

    inside = sequence < sequences
    context = tl.load(context_lens + sequence, mask=inside, other=0).to(tl.int32)
    own = context + first - start + token
    length = tl.where(inside, width if LISTED else context + first - start + count, 0)
    part = tl.cdiv(tl.cdiv(length, splits), BN) * BN
    lo = split * part
    hi = tl.minimum(lo + part, length)
    if SPLIT:
        if lo >= hi:
            if EARLY:
                await_launch_before()
            tl.store(sums + row * s_row + head * s_head + split, tl.full([M], float("-inf"), tl.float32), mask=live)
            return

    keys += kv_head.to(tl.int64) * k_head
    if not SHARED:
        values += kv_head.to(tl.int64) * v_head
    if TILES > 0:
        key_scales += kv_head.to(tl.int64) * ks_head
        if not SHARED:
            value_scales += kv_head.to(tl.int64) * vs_head
    most = tl.full([M], float("-inf"), tl.float32)
    # Summed over positions at the end: a sum across warps in each tile would hold up its products.
    total = tl.zeros([M, BN], tl.float32)
    result = tl.zeros([M, BV // WIDE], tl.float32)
    result_odd = result
    column = tl.arange(0, BN)
    if LISTED:
        last = context + first - start
        # Programs of other heads write the same numbers to the same places.
        places += first.to(tl.int64) * p_row
        until = lo + tl.cdiv(hi - lo, BN) * BN
        if indices is not None:
            indices += first.to(tl.int64) * i_row
            _place_listed(indices, places, lo, hi, until, page_table, table_row, sequence, last, PAGE, 1024)
        if not EARLY:
            ahead = tl.load(places + lo + column, mask=lo + column < until, other=-1)
    else:
        # A tile lies in one page, whose number is read one tile ahead.
        page_table += sequence.to(tl.int64) * table_row
        sector = lo // PAGE + tl.arange(0, 128) * 4
        prefetch(page_table + sector, (sector * PAGE < hi) & inside)
        page = tl.load(page_table + lo // PAGE, mask=(lo < hi) & inside, other=0)
    # After the look-ups, which take longer: it is on its way with the first rows.
    channel = tl.arange(0, BK)
    at = q + (row * q_row + head * q_head)[:, None] + channel[None, :]
    query = tl.load(at, mask=live[:, None] & (channel < DK)[None, :], other=0.0)
    query_odd = query
    if PAIRS:
        largest = tl.max(tl.abs(query.to(tl.float32)), 1)
        largest = tl.where(largest == 0.0, 1.0, largest)[:, None]
        query, query_odd = tl.split(tl.reshape((query.to(tl.float32) / largest).to(NARROW), (M, BK // 2, 2)))
        largest *= scale
    if DR > 0:
        channel_r = tl.arange(0, BR)
        at = q_rope + (row * qr_row + head * qr_head)[:, None] + channel_r[None, :]
        query_r = tl.load(at, mask=live[:, None] & (channel_r < DR)[None, :], other=0.0)
    else:
        query_r = query
    if EARLY:
        await_launch_before()
        let_next_launch_start()
        ahead = tl.load(places + lo + column, mask=lo + column < until, other=-1)

    if FETCH:
        soon = tl.load(places + lo + BN + column, mask=lo + BN + column < until, other=-1)
    for begin in range(lo, hi, BN):
        if FETCH:
            _fetch(keys, soon, k_row, DK, BK)
            if DR > 0:
                _fetch(rope_keys, soon, r_row, DR, BR)
            soon = tl.load(places + tl.minimum(begin + 2 * BN, until - BN) + column)
        if LISTED:
            entry = ahead.to(tl.int64)
            seen = ahead >= 0
            wrong = ahead == -2
            origin = tl.full([], 0, tl.int64)
            # Past the end the last tile again, which is not used: a mask's choice of values would wait for the load.
            ahead = tl.load(places + tl.minimum(begin + BN, until - BN) + column)
        else:
            # From the tile's first row on all offsets are the same in each tile.
            origin = page * PAGE + begin % PAGE
            entry = column
            seen = begin + column < hi
            page = tl.load(page_table + tl.minimum(begin + BN, hi - 1) // PAGE)
        key = _tile(keys + origin * k_row, entry, seen, k_row, DK // WIDE, BK // WIDE)
        key_odd = key
        if PAIRS:
            key_scale = _scale_of_each(key_scales + origin * ks_row, entry, seen, ks_row)
            key, key_odd = _halves(key, FLOAT8, NARROW)
            factor = largest * key_scale[None, :]
        else:
            factor = scale
        if TILES > 1:
            key = _dequantised(key, _scales(key_scales + origin * ks_row, entry, seen, ks_row, TILES), DTYPE, TILES)
        if DR > 0:
            key_r = _tile(rope_keys + origin * r_row, entry, seen, r_row, DR, BR)
        else:
            key_r = key
        # Added, so that one operation scales and masks: products with what was not read are 0.
        if PAIRS:
            # The weights take the values' scales, as exponents: so they are at most 1, and float16 holds them.
            value_scale = key_scale
            if not SHARED:
                value_scale = _scale_of_each(value_scales + origin * vs_row, entry, seen, vs_row)
            exponent = log2_fast(tl.maximum(value_scale, 1e-30))
            added = tl.where(seen, exponent, float("-inf"))
            worth = exp2_fast(-exponent)[None, :]
        else:
            added = tl.where(seen, 0.0, float("-inf"))
            worth = 1.0
        if LISTED:
            # A position that is none must not pass for a hole: it shows as NaN.
            added = tl.where(wrong, float("nan"), added)
        position = begin + column
        if APART:
            if begin < hi:
                weight, kept, most, total = _weigh(
                    query, query_odd, query_r, key, key_odd, key_r, scale, factor, added, worth, position, own, most,
                    total, BT, DR, PAIRS,
                )  # fmt: skip
                weight = weight.to(NARROW)
            else:
                # Not a constant, for which the compiler would keep room all through the loop.
                weight = tl.full([M, BN], begin, tl.float32).to(NARROW)
                kept = tl.zeros([M], tl.float32)
        else:
            weight, kept, most, total = _weigh(
                query, query_odd, query_r, key, key_odd, key_r, scale, factor, added, worth, position, own, most,
                total, BT, DR, PAIRS,
            )  # fmt: skip
        value_odd = key_odd
        if SHARED:
            value = key
        else:
            value = _tile(values + origin * v_row, entry, seen, v_row, DV // WIDE, BV // WIDE)
            if PAIRS:
                value, value_odd = _halves(value, FLOAT8, NARROW)
            if TILES > 1:
                value = _dequantised(
                    value, _scales(value_scales + origin * vs_row, entry, seen, vs_row, TILES), DTYPE, TILES
                )
        result = tl.dot(weight.to(NARROW), value, result * kept[:, None], input_precision="ieee")
        if PAIRS:
            result_odd = tl.dot(weight.to(NARROW), value_odd, result_odd * kept[:, None], input_precision="ieee")

    total = tl.sum(total, 1)
    # An empty list gives zeros.
    share = 1.0 / tl.where(total == 0.0, 1.0, total)[:, None]
    channel_v = tl.arange(0, BV // WIDE) * WIDE
    at = out + (row * o_row + head * o_head + split * o_split)[:, None] + channel_v[None, :]
    tl.store(at, (result * share).to(out.dtype.element_ty), mask=live[:, None] & (channel_v < DV)[None, :])
    if PAIRS:
        tl.store(at + 1, (result_odd * share).to(out.dtype.element_ty), mask=live[:, None] & (channel_v < DV)[None, :])
    if SPLIT:
        log_sum = tl.where(total == 0.0, float("-inf"), most + tl.log2(tl.where(total == 0.0, 1.0, total)))
        tl.store(sums + row * s_row + head * s_head + split, log_sum, mask=live)


@triton.jit
def merge(
    parts,
    sums,
    out,
    splits,
    heads,
    p_row,
    p_head,
    s_row,
    s_head,
    o_row,
    o_head,
    DV: tl.constexpr,
    BV: tl.constexpr,
    BP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out = sum_i 2^sums_i parts_i / sum_i 2^sums_i over the splits of a row and head. Grid: [rows * heads, DV / BV].

    A part that attends to nothing has the sum -inf and was never written: what lies there counts for nothing. It is
    loaded all the same, so that parts and sums are on their way at once.
    """
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    split = tl.arange(0, BP)
    channel = tl.program_id(1) * BV + tl.arange(0, BV)
    if EARLY:
        await_launch_before()
    log_sum = tl.load(sums + row * s_row + head * s_head + split, mask=split < splits, other=float("-inf"))
    at = parts + row * p_row + head * p_head + split[:, None] * DV + channel[None, :]
    part = tl.load(at, mask=(split < splits)[:, None] & (channel < DV)[None, :], other=0.0)
    highest = tl.max(log_sum, 0)
    weight = tl.exp2(log_sum - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weight, 0)
    part = tl.where((log_sum == float("-inf"))[:, None], 0.0, part.to(tl.float32))
    result = tl.sum(part * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * o_row + head * o_head + channel, result.to(out.dtype.element_ty), mask=channel < DV)
