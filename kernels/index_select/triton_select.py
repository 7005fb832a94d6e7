# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The best k of a row of ordered scores, in ascending order of the candidates: exact, with stable ties."""

import triton
import triton.language as tl

from day0.kernels.common.triton_math import let_next_launch_start
from day0.kernels.index_select.triton_blocks import entry_of, first_row, sequence_of

# Below the key of every score, -inf too: a slot that holds none.
NOTHING: tl.constexpr = tl.constexpr(-(2**31))
_HIGHEST: tl.constexpr = tl.constexpr(2**31 - 1)


@triton.jit
def _valid(keys, at, count):
    """keys[at], from `count` on NOTHING. Whole groups of 4 are read, up to 3 past the last, so that loads are wide."""
    return tl.where(at < count, tl.load(keys + at, mask=at < (count + 3) // 4 * 4, other=NOTHING), NOTHING)


@triton.jit
def cut_of(keys, k, slack):
    """A key that at least k and, unless more are equal, at most k + slack of `keys` [W] reach; W >= k of them valid.

    Integer counts, so that their order does not matter; W < 65536, so that two fit in one. With slack 0 and without
    equal keys it lies above the k + 1st largest; it is the k-th largest where that one has equals beyond k.
    """
    low = tl.min(tl.where(keys == NOTHING, _HIGHEST, keys), axis=0).to(tl.int64)
    high = tl.max(keys, axis=0).to(tl.int64)
    reached = k + slack + 1
    # Latency counts, not operations: each step asks at two keys and leaves a third.
    while (low < high) & (reached > k + slack):
        third = low + 1 + (((high - low - 1) * 11) >> 5)
        second = low + 1 + (((high - low - 1) * 22) >> 5)
        ones = (keys >= third.to(tl.int32)).to(tl.int32) + ((keys >= second.to(tl.int32)).to(tl.int32) << 16)
        n = tl.sum(ones, axis=0)
        if (n >> 16) >= k:
            low = second
            reached = n >> 16
        elif (n & 0xFFFF) >= k:
            low = third
            reached = n & 0xFFFF
            high = second - 1
        else:
            high = third - 1
    return low.to(tl.int32)


@triton.jit
def _counts_before(ones, N: tl.constexpr):
    """What stands before each of `ones` [N] in their sum. By rows of 16: a scan across all warps costs far more."""
    rows = tl.reshape(ones, [N // 16, 16])
    totals = tl.sum(rows, axis=1)
    before = tl.cumsum(totals, axis=0) - totals
    return tl.reshape(tl.cumsum(rows, axis=1) - rows + before[:, None], [N])


@triton.jit
def _sampled_bound(scores, visible, k, SAMPLE: tl.constexpr):
    """A key that, as a rule, between k and 2 k of a row's scores reach: by rank k and four deviations in a sample."""
    sample = tl.load(scores + (tl.arange(0, SAMPLE).to(tl.int64) * visible) // SAMPLE)
    expected = k * (SAMPLE / visible.to(tl.float32))
    rank = tl.minimum((expected + 4.0 * tl.sqrt(expected) + 1.0).to(tl.int32), SAMPLE)
    return cut_of(sample, rank, rank // 16)


@triton.jit
def _keep_from(scores, kept, kept_keys, bound, begin, end, TILE: tl.constexpr):
    """Writes ids and keys of begin .. end - 1 that reach the bound from kept[begin] on, in order. Gives how many."""
    count = 0
    for at in range(begin, end, TILE):
        id = at + tl.arange(0, TILE)
        keys = _valid(scores, id, end)
        reach = keys >= bound
        ones = reach.to(tl.int32)
        place = begin + count + _counts_before(ones, TILE)
        tl.store(kept + place, id, mask=reach)
        tl.store(kept_keys + place, keys, mask=reach)
        count += tl.sum(ones, axis=0)
    return count


@triton.jit
def _narrow(scores, kept, kept_keys, visible, k, bound, LIST: tl.constexpr, TILE: tl.constexpr):
    """Writes ids and keys of the at most LIST candidates that can be among the best k, in order; gives how many.

    For scores that a sample says too little of. What is known of the cut is halved until a bound fits: at the cut
    itself fewer than k are above it, and of those on it the first k are enough, so LIST >= 2 k always does.
    """
    low = tl.full([], NOTHING + 1, tl.int32)
    high = tl.full([], _HIGHEST, tl.int32)
    count = LIST + 1
    slot = tl.arange(0, TILE)
    while count > LIST:
        above_before = 0
        level_before = 0
        for at in range(0, visible, TILE):
            id = at + slot
            keys = _valid(scores, id, visible)
            above = keys > bound
            level = keys == bound
            # Two counts in one scan: TILE <= 32768, so neither half can overflow into the other.
            counts = above.to(tl.int32) + (level.to(tl.int32) << 16)
            before = _counts_before(counts, TILE)
            total = tl.sum(counts, axis=0)
            levels = level_before + (before >> 16)
            place = above_before + (before & 0xFFFF) + tl.minimum(levels, k)
            taken = (above | (level & (levels < k))) & (place < LIST)
            tl.store(kept + place, id, mask=taken)
            tl.store(kept_keys + place, keys, mask=taken)
            above_before += total & 0xFFFF
            level_before += total >> 16
        count = above_before + tl.minimum(level_before, k)
        if above_before + level_before < k:
            high = bound - 1
            count = LIST + 1
        elif count > LIST:
            low = bound + 1
        if count > LIST:
            bound = (low | high) - ((low ^ high) >> 1)
        tl.debug_barrier()
    return count


@triton.jit(do_not_specialize=["first_block", "tokens", "sequences", "k", "width"])
def select_kernel(
    scores,  # [slots, candidates] int32 `ordered` scores
    kept,  # [slots, candidates] int32 scratch: ids
    kept_keys,  # [slots, candidates] int32 scratch
    counts,  # [slots, PARTS] int32 scratch
    arrived,  # [slots] int32, 0 where a row sees more than k candidates
    out,  # [N, width] int64 or int32
    page_table,  # [S, P] where PAGE
    cu_seqlens,  # [S + 1]
    context_lens,  # [S]
    first_block,
    tokens,  # N
    sequences,  # S
    k,
    width,
    score_stride,
    out_stride,
    page_stride,
    R: tl.constexpr,
    LIST: tl.constexpr,
    SAMPLE: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    POOL: tl.constexpr,
    TAIL: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Programs (slot, R to a block of query rows; part of what it sees). Writes a row: chosen tokens, tail, -1.

    With PAGE > 0 (tokens) it writes the rows of a pool with an entry for each token instead of the tokens.

    Each part keeps what reaches a bound that is the same for all; the last to arrive chooses among that.
    """
    slot = tl.program_id(0)
    part = tl.program_id(1)
    block = first_block + slot // R
    sequence = sequence_of(block, cu_seqlens, sequences, R)
    start = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    row = first_row(block, start, sequence, R) + slot % R
    # Rows behind the last sequence are padding: they get -1.
    if row >= tl.where(sequence == sequences - 1, tokens, end):
        return
    position = tl.where(row < end, tl.load(context_lens + sequence) + row - start, -1)
    visible = ((position + 1) // POOL).to(tl.int32)
    if (visible <= LIST) & (part > 0):
        return
    out += row * out_stride
    pages = page_table + sequence * page_stride
    lane = tl.arange(0, LIST)
    if visible <= k:
        # All is chosen whatever its score.
        _write_tokens(out, lane < visible, lane, lane, pages, POOL, PAGE)
        _write_rest(out, position, visible, width, pages, POOL, TAIL, LIST, PAGE)
        return
    scores += slot.to(tl.int64) * score_stride
    if visible > LIST:
        kept += slot.to(tl.int64) * score_stride
        kept_keys += slot.to(tl.int64) * score_stride
        counts += slot * PARTS
        bound = _sampled_bound(scores, visible, k, SAMPLE)
        # Parts begin at groups of 4, so that loads are wide.
        per_part = tl.cdiv(tl.cdiv(visible, PARTS), 4) * 4
        begin = part * per_part
        count = _keep_from(scores, kept, kept_keys, bound, begin, tl.minimum(begin + per_part, visible), TILE)
        place = lane
        if PARTS > 1:
            tl.store(counts + part, count)
            # All of the part must be written before it counts as arrived.
            tl.debug_barrier()
            if tl.atomic_add(arrived + slot, 1, sem="acq_rel") < PARTS - 1:
                return
            if PAGE > 0:
                # A read of pool rows comes next.
                let_next_launch_start()
            count = 0
            for other in tl.static_range(PARTS):
                # Behind what the parts before kept.
                place = tl.where(lane >= count, other * per_part + lane - count, place)
                count += tl.load(counts + other)
        if (count < k) | (count > LIST):
            count = _narrow(scores, kept, kept_keys, visible, k, bound, LIST, TILE)
            place = lane
        tl.debug_barrier()
        ids = tl.load(kept + place, mask=lane < count, other=0)
        keys = tl.load(kept_keys + place, mask=lane < count, other=NOTHING)
    else:
        keys = _valid(scores, lane, visible)
        ids = lane
    cut = cut_of(keys, k, 0)
    above = keys > cut
    level = keys == cut
    ones = above.to(tl.int32) + (level.to(tl.int32) << 16)
    room = k - tl.sum(above.to(tl.int32), axis=0)
    before = _counts_before(ones, LIST)
    levels = before >> 16
    keep = above | (level & (levels < room))
    _write_tokens(out, keep, (before & 0xFFFF) + tl.minimum(levels, room), ids, pages, POOL, PAGE)
    _write_rest(out, position, k, width, pages, POOL, TAIL, LIST, PAGE)


@triton.jit
def _named(token, mask, pages, PAGE: tl.constexpr):
    """The token itself, or its row of a pool."""
    if PAGE > 0:
        return entry_of(pages, token, mask, PAGE)
    else:
        return token


@triton.jit
def _write_tokens(out, keep, place, ids, pages, POOL: tl.constexpr, PAGE: tl.constexpr):
    """Stores the tokens of the kept candidates: pool j is tokens j * POOL .. + POOL - 1."""
    for i in tl.static_range(POOL):
        value = _named(ids * POOL + i, keep, pages, PAGE)
        tl.store(out + place * POOL + i, value.to(out.dtype.element_ty), mask=keep)


@triton.jit
def _write_rest(
    out,
    position,
    count,
    width,
    pages,
    POOL: tl.constexpr,
    TAIL: tl.constexpr,
    COLUMNS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Stores what follows the `count` chosen pools' tokens: the tokens of the incomplete pool, then -1."""
    used = count * POOL
    complete = (position + 1) // POOL * POOL
    for at in range(used, width, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        value = tl.full([COLUMNS], -1, tl.int64)
        if TAIL:
            token = complete + column - used
            value = tl.where(token <= position, _named(token, token <= position, pages, PAGE), -1)
        tl.store(out + column, value.to(out.dtype.element_ty), mask=column < width)
