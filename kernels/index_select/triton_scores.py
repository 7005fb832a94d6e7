# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Index scores of paged keys, as integers in the same order."""

import triton
import triton.language as tl

from day0.kernels.index_select.triton_blocks import entry_of, first_row, sequence_of


@triton.jit
def ordered(scores):
    """float32 scores as int32 keys in the same order: both zeros are equal, NaN is above all (as torch sorts it)."""
    scores = tl.where(scores == 0.0, 0.0, scores)
    bits = scores.to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(scores != scores, 0x7FFFFFFF, keys)


@triton.jit
def dequantised(values, exponents, M: tl.constexpr, D: tl.constexpr, FP8: tl.constexpr, compute: tl.constexpr):
    """values [M, D] uint8 (e4m3 bits) or int8, each group of 32 times 2^(its exponent - the largest of the row + 7).

    Gives them with 2^(largest - 127) [M] float32: the values mean their product times 2^-7. exponents: [M, D // 32]
    int32. float16 holds e4m3 values exactly down to 2^-22 of the row's largest scale (what is smaller is rounded at
    2^-31 of it), bfloat16 int8 values always. Both are what conversions of two at once give.
    """
    largest = tl.max(exponents, axis=1)
    scales = ((tl.maximum(exponents - largest[:, None], -126 - 7) + 127 + 7) << 23).to(tl.float32, bitcast=True)
    if FP8:
        real = values.to(tl.float8e4nv, bitcast=True).to(compute)
    else:
        real = values.to(compute)
    grouped = tl.reshape(real, [M, D // 32, 32]) * scales.to(compute)[:, :, None]
    return tl.reshape(grouped, [M, D]), (largest << 23).to(tl.float32, bitcast=True)


@triton.jit
def _place_of(pages, at, last, B: tl.constexpr, ENTRIES: tl.constexpr):
    """Pool rows of the tile of candidates from `at` on: of the first, where tiles lie within pages, or of each."""
    if ENTRIES % B == 0:
        return entry_of(pages, at, at < last, ENTRIES)
    else:
        candidate = at + tl.arange(0, B)
        return entry_of(pages, candidate, candidate < last, ENTRIES)


@triton.jit(do_not_specialize=["first_block", "sequences", "k"])
def score_kernel(
    q,  # [N, HEADS * D]
    q_scales,  # [N, HEADS * D // 32] uint8 exponents where QUANTISED
    weights,  # [N, HEADS] where WEIGHTED
    keys,  # [pool rows, D]
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
    compute: tl.constexpr,
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

    head = tl.arange(0, R * H) % H
    query_row = first + tl.arange(0, R * H) // H
    used = (head < HEADS) & (query_row < end)
    channel = tl.arange(0, D)
    group = tl.arange(0, D // 32)
    q_at = q + query_row[:, None] * q_stride + head[:, None] * D + channel[None, :]
    queries = tl.load(q_at, mask=used[:, None], other=0)
    if QUANTISED != "":
        s_at = q_scales + query_row[:, None] * q_scale_stride + head[:, None] * (D // 32) + group[None, :]
        q_exponents = tl.load(s_at, mask=used[:, None], other=0)
        q_exponents = q_exponents.to(tl.int32)
        queries, q_factor = dequantised(queries, q_exponents, R * H, D, QUANTISED == "e4m3", compute)
    queries = tl.trans(queries)
    share = tl.full([R * H], 1.0, tl.float32)
    if WEIGHTED:
        share = tl.load(weights + query_row * weight_stride + head, mask=used, other=0.0).to(tl.float32)
    share = share * scale
    if QUANTISED != "":
        share = share * (q_factor * 2.0**-14)

    pages = page_table + sequence * page_stride
    column = tl.arange(0, B)
    mine = scores + ((number * R + tl.arange(0, R)).to(tl.int64) * score_stride)[None, :]
    nan = tl.zeros([B, R], tl.int32)
    # Where the next tile is is looked up one tile ahead: a look-up in the same step would halve the tiles on their way.
    ahead = _place_of(pages, begin, last, B, ENTRIES)
    for at in range(begin, last, B):
        candidate = at + column
        seen = candidate < last
        place = ahead
        ahead = _place_of(pages, at + B, last, B, ENTRIES)
        if ENTRIES % B == 0:
            tile_at = keys + place * key_stride + (column[:, None] * key_stride + channel[None, :])
            e_at = key_scales + place * key_scale_stride + column * key_scale_stride
        else:
            tile_at = keys + place[:, None] * key_stride + channel[None, :]
            e_at = key_scales + place * key_scale_stride
        tile = tl.load(tile_at, mask=seen[:, None], other=0)
        if QUANTISED != "":
            together = tl.load(e_at, mask=seen, other=0)
            exponents = ((together[:, None] >> (8 * group)[None, :].to(together.dtype)) & 0xFF).to(tl.int32)
            tile, factor = dequantised(tile, exponents, B, D, QUANTISED == "e4m3", compute)
        hits = tl.maximum(tl.dot(tile, queries, input_precision="ieee"), 0.0, propagate_nan=tl.PropagateNan.ALL)
        hits = hits * share[None, :]
        if H != HEADS:
            # An infinite key makes NaN of the padding heads' zeros.
            hits = tl.where((head < HEADS)[None, :], hits, 0.0)
        sums = tl.sum(tl.reshape(hits, [B, R, H]), axis=2)
        if QUANTISED != "":
            # Powers of two above 0: they come out of relu and sums.
            sums = sums * factor[:, None]
        counts = candidate[:, None] < visible[None, :]
        nan = nan | (counts & (sums != sums)).to(tl.int32)
        tl.store(mine + candidate[:, None], ordered(sums), mask=counts & seen[:, None])
    if tl.max(tl.max(nan, axis=1), axis=0) > 0:
        tl.store(flag, 1)
