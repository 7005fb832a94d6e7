# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Index scores of paged keys, as integers in the same order."""

import triton
import triton.language as tl

from day0.kernels.common.triton_math import pairs_of_float8, pairs_of_int8, prefetch
from day0.kernels.index_select.triton_blocks import first_row, sequence_of


@triton.jit
def ordered(scores):
    """float32 scores as int32 keys in the same order: both zeros are equal, NaN is above all (as torch sorts it)."""
    scores = tl.where(scores == 0.0, 0.0, scores)
    bits = scores.to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(scores != scores, 0x7FFFFFFF, keys)


@triton.jit
def _parted(pairs, FP8: tl.constexpr):
    """Even and odd channels of int16 pairs of e4m3 or int8 values, as float16, which holds both exactly."""
    if FP8:
        even, odd = pairs_of_float8(pairs)
    else:
        even, odd = pairs_of_int8(pairs)
    return even, odd


@triton.jit
def _group_of_queries(q_at, s_at, used, largest, group: tl.constexpr, FP8: tl.constexpr):
    """(even, odd channels) [16, queries] of a group of 32, times 2^(its exponent - the largest of the query + 7).

    float16 holds both forms exactly down to 2^-22 of the largest scale; smaller groups lose digits, and from 2^-32 on
    they count as 0.
    """
    exponent = tl.load(s_at + group, mask=used, other=0).to(tl.int32)
    scale = ((tl.maximum(exponent - largest, -126 - 7) + 127 + 7) << 23).to(tl.float32, bitcast=True).to(tl.float16)
    even, odd = _parted(tl.load(q_at + 16 * group, mask=used[:, None], other=0), FP8)
    return tl.trans(even * scale[:, None]), tl.trans(odd * scale[:, None])


@triton.jit
def _pages_of(pages, at, last, B: tl.constexpr, ENTRIES: tl.constexpr):
    """Pages of the tile of candidates from `at` on: of the first, where tiles lie within pages, or of each.

    Past the last candidate its own again: a mask's choice of values would wait for the load.
    """
    if ENTRIES % B == 0:
        return tl.load(pages + tl.minimum(at, last - 1) // ENTRIES)
    else:
        return tl.load(pages + tl.minimum(at + tl.arange(0, B), last - 1) // ENTRIES)


@triton.jit
def _rows_of(page, at, B: tl.constexpr, ENTRIES: tl.constexpr):
    """(pool row to count from, rows from it [B]) of a tile, given its pages; within a page always the same rows."""
    if ENTRIES % B == 0:
        return page * ENTRIES + at % ENTRIES, tl.arange(0, B)
    else:
        return tl.full([], 0, tl.int64), page * ENTRIES + (at + tl.arange(0, B)) % ENTRIES


@triton.jit
def _exponents_of(key_scales, stride, page, at, last, B: tl.constexpr, ENTRIES: tl.constexpr):
    """The exponents of a tile's keys [B], those of a key as one integer; past the last key its own."""
    if ENTRIES % B == 0:
        origin = page * ENTRIES + at % ENTRIES
        return tl.load(key_scales + origin * stride + tl.minimum(tl.arange(0, B), last - 1 - at) * stride)
    else:
        candidate = tl.minimum(at + tl.arange(0, B), last - 1)
        return tl.load(key_scales + (page * ENTRIES + candidate % ENTRIES) * stride)


@triton.jit(do_not_specialize=["first_block", "sequences", "k"])
def score_kernel(
    q,  # [N, HEADS * D]; where QUANTISED, pairs of channels as int16
    q_scales,  # [N, HEADS * D // 32] uint8 exponents where QUANTISED
    weights,  # [N, HEADS] where WEIGHTED
    keys,  # [pool rows, D], the same
    key_scales,  # [pool rows] uint8 exponents where QUANTISED, the D // 32 of a row as one integer
    page_table,  # [S, P]
    cu_seqlens,  # [S + 1]
    context_lens,  # [S]
    scores,  # [slots, candidates] int32, written where a row sees more than k candidates
    arrived,  # [slots] int32, set to 0 there
    flag,  # [1] int32
    first_block,
    sequences,  # S
    k,
    scale,
    q_stride,
    q_scale_stride,
    weight_stride,
    key_stride,
    key_scale_stride,
    page_stride,
    score_stride,
    HEADS: tl.constexpr,
    H: tl.constexpr,  # HEADS up to a power of 2
    D: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    ENTRIES: tl.constexpr,  # candidates per page
    POOL: tl.constexpr,
    WEIGHTED: tl.constexpr,
    QUANTISED: tl.constexpr,  # "", "e4m3", "int8"
):
    """Programs (block of R query rows, split of what they see): `ordered` scores of the split's candidates.

    With relu(scale x) = scale relu(x) the scale goes into the head weights. Each score is one dot product per head over
    all of D and one sum over heads, in an order that is the same for any split, block and neighbour: warps stand along
    the candidates, so that one row of the product is within a warp (B >= 16 * num_warps).
    """
    # The last blocks see most in a causal prefill: they go first.
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    block = first_block + number
    split = tl.program_id(1)
    sequence = sequence_of(block, cu_seqlens, sequences, R)
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    first = first_row(block, start, sequence, R)
    row = first + tl.arange(0, R)
    position = tl.where(row < end, tl.load(context_lens + sequence) + row - start, -1)
    visible = ((position + 1) // POOL).to(tl.int32)
    most = tl.max(visible, axis=0)
    if most <= k:
        return
    if split == 0:
        tl.store(arrived + number * R + tl.arange(0, R), 0)
    per_split = tl.cdiv(tl.cdiv(most, B), tl.num_programs(1)) * B
    begin = split * per_split
    last = tl.minimum(begin + per_split, most)
    if begin >= last:
        return

    pages = page_table + sequence * page_stride
    # A sector for every fourth page: tiles follow each other faster than memory answers.
    page = begin // ENTRIES + tl.arange(0, 128) * 4
    prefetch(pages + page, page * ENTRIES < last)
    head = tl.arange(0, R * H) % H
    query_row = first + tl.arange(0, R * H) // H
    used = (head < HEADS) & (query_row < end)
    share = tl.full([R * H], 1.0, tl.float32)
    if WEIGHTED:
        share = tl.load(weights + query_row * weight_stride + head, mask=used, other=0.0).to(tl.float32)
    share = share * scale
    if QUANTISED == "":
        channel = tl.arange(0, D)
        q_at = q + query_row[:, None] * q_stride + head[:, None] * D + channel[None, :]
        queries = tl.trans(tl.load(q_at, mask=used[:, None], other=0))
    else:
        # Groups of 32 channels, read two by two.
        channel = tl.arange(0, 16)
        q_at = q + query_row[:, None] * q_stride + head[:, None] * (D // 2) + channel[None, :]
        s_at = q_scales + query_row * q_scale_stride + head * (D // 32)
        largest = tl.full([R * H], 0, tl.int32)
        for g in tl.static_range(D // 32):
            largest = tl.maximum(largest, tl.load(s_at + g, mask=used, other=0).to(tl.int32))
        queries = ()
        for g in tl.static_range(D // 32):
            queries = queries + (_group_of_queries(q_at, s_at, used, largest, g, QUANTISED == "e4m3"),)
        share = share * ((largest << 23).to(tl.float32, bitcast=True) * 2.0**-7)

    column = tl.arange(0, B)
    mine = scores + ((number * R + tl.arange(0, R)).to(tl.int64) * score_stride)[None, :]
    nan = tl.zeros([B, R], tl.int32)
    # Where the next tile is is looked up one tile ahead: a look-up in the same step would halve the tiles on their way.
    page = _pages_of(pages, begin, last, B, ENTRIES)
    if QUANTISED != "":
        exponents = _exponents_of(key_scales, key_scale_stride, page, begin, last, B, ENTRIES)
    for at in range(begin, last, B):
        candidate = at + column
        seen = candidate < last
        origin, entry = _rows_of(page, at, B, ENTRIES)
        page = _pages_of(pages, at + B, last, B, ENTRIES)
        tile_at = keys + origin * key_stride + ((entry * key_stride)[:, None] + channel[None, :])
        if QUANTISED == "":
            tile = tl.load(tile_at, mask=seen[:, None], other=0)
            hits = tl.dot(tile, queries, input_precision="ieee")
        else:
            # Scales are put on the products: putting them on keys would carry those through shared memory once more.
            hits = tl.zeros([B, R * H], tl.float32)
            # Relative to the key's largest, so that nothing overflows before the query's scale is in.
            most_of_key = tl.zeros([B], tl.int32)
            for g in tl.static_range(D // 32):
                most_of_key = tl.maximum(most_of_key, (exponents >> (8 * g)).to(tl.int32) & 0xFF)
            for g in tl.static_range(D // 32):
                even, odd = _parted(tl.load(tile_at + 16 * g, mask=seen[:, None], other=0), QUANTISED == "e4m3")
                part = tl.dot(even, queries[g][0], input_precision="ieee")
                part = tl.dot(odd, queries[g][1], part, input_precision="ieee")
                exponent = ((exponents >> (8 * g)).to(tl.int32) & 0xFF) - most_of_key + 127
                hits += part * (tl.maximum(exponent, 0) << 23).to(tl.float32, bitcast=True)[:, None]
            following = tl.minimum(at + B, last - 1)
            exponents = _exponents_of(key_scales, key_scale_stride, page, following, last, B, ENTRIES)
        hits = tl.maximum(hits, 0.0, propagate_nan=tl.PropagateNan.ALL)
        hits = hits * share[None, :]
        if H != HEADS:
            # An infinite key makes NaN of the padding heads' zeros.
            hits = tl.where((head < HEADS)[None, :], hits, 0.0)
        sums = tl.sum(tl.reshape(hits, [B, R, H]), axis=2)
        if QUANTISED != "":
            # Powers of two above 0: they come out of relu and sums.
            sums = sums * (most_of_key << 23).to(tl.float32, bitcast=True)[:, None]
        counts = candidate[:, None] < visible[None, :]
        nan = nan | (counts & (sums != sums)).to(tl.int32)
        tl.store(mine + candidate[:, None], ordered(sums), mask=counts & seen[:, None])
    if tl.max(tl.max(nan, axis=1), axis=0) > 0:
        tl.store(flag, 1)
