# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The best k of a row of ordered scores, in ascending order of the candidates: exact, with stable ties."""

import triton
import triton.language as tl

from day0.kernels.index_select.triton_blocks import first_row, sequence_of

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

    Integer counts, so that their order does not matter. With slack 0 and without equal keys it lies above the k + 1st
    largest; it is the k-th largest where that one has equals beyond k.
    """
    low = tl.min(tl.where(keys == NOTHING, _HIGHEST, keys), axis=0)
    high = tl.max(keys, axis=0)
    reached = k + slack + 1
    while (low < high) & (reached > k + slack):
        middle = (low | high) - ((low ^ high) >> 1)  # their mean, rounded up, without overflow
        n = tl.sum((keys >= middle).to(tl.int32), axis=0)
        if n >= k:
            low = middle
            reached = n
        else:
            high = middle - 1
    return low


@triton.jit
def _narrow(scores, kept, visible, k, LIST: tl.constexpr, SAMPLE: tl.constexpr, TILE: tl.constexpr):
    """Copies the at most LIST candidates that can be among the best k, in order, as keys and ids into kept [2, LIST].

    A bound from a sample is reached, as a rule, by k and four standard deviations more, and one pass over the scores
    is enough. What is known of the cut otherwise is halved until the bound fits: at the cut itself fewer than k are
    above it, and of those on it the first k are enough, so LIST >= 2 k always does. Gives how many there are.
    """
    sample = tl.load(scores + (tl.arange(0, SAMPLE).to(tl.int64) * visible) // SAMPLE)
    expected = k * (SAMPLE / visible.to(tl.float32))
    rank = tl.minimum((expected + 4.0 * tl.sqrt(expected) + 1.0).to(tl.int32), SAMPLE)
    bound = cut_of(sample, rank, rank // 16)
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
            before = tl.cumsum(counts, axis=0) - counts
            total = tl.sum(counts, axis=0)
            levels = level_before + (before >> 16)
            place = above_before + (before & 0xFFFF) + tl.minimum(levels, k)
            taken = (above | (level & (levels < k))) & (place < LIST)
            tl.store(kept + place, keys, mask=taken)
            tl.store(kept + LIST + place, id, mask=taken)
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
    lists,  # [slots, 2 * LIST] int32 scratch
    out,  # [N, width] int64
    cu_seqlens,  # [S + 1]
    context_lens,  # [S]
    first_block,
    tokens,  # N
    sequences,  # S
    k,
    width,
    score_stride,
    out_stride,
    R: tl.constexpr,
    LIST: tl.constexpr,
    SAMPLE: tl.constexpr,
    TILE: tl.constexpr,
    POOL: tl.constexpr,
    TAIL: tl.constexpr,
):
    """Programs: slots, R to a block of query rows. Writes a row of `out`: chosen tokens, tail, -1."""
    slot = tl.program_id(0)
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
    out += row * out_stride
    lane = tl.arange(0, LIST)
    if visible <= k:
        # All is chosen whatever its score.
        _write_tokens(out, lane < visible, lane, lane, POOL)
        _write_rest(out, position, visible, width, POOL, TAIL, LIST)
        return
    scores += slot.to(tl.int64) * score_stride
    if visible > LIST:
        lists += slot.to(tl.int64) * (2 * LIST)
        count = _narrow(scores, lists, visible, k, LIST, SAMPLE, TILE)
        keys = _valid(lists, lane, count)
        ids = tl.load(lists + LIST + lane)
    else:
        keys = _valid(scores, lane, visible)
        ids = lane
    cut = cut_of(keys, k, 0)
    above = keys > cut
    level = keys == cut
    counts = above.to(tl.int32) + (level.to(tl.int32) << 16)
    room = k - tl.sum(above.to(tl.int32), axis=0)
    before = tl.cumsum(counts, axis=0) - counts
    levels = before >> 16
    keep = above | (level & (levels < room))
    _write_tokens(out, keep, (before & 0xFFFF) + tl.minimum(levels, room), ids, POOL)
    _write_rest(out, position, k, width, POOL, TAIL, LIST)


@triton.jit
def _write_tokens(out, keep, place, ids, POOL: tl.constexpr):
    """Stores the tokens of the kept candidates: pool j is tokens j * POOL .. + POOL - 1."""
    for i in tl.static_range(POOL):
        tl.store(out + place * POOL + i, (ids * POOL + i).to(tl.int64), mask=keep)


@triton.jit
def _write_rest(out, position, count, width, POOL: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores what follows the `count` chosen pools' tokens: the tokens of the incomplete pool, then -1."""
    used = count * POOL
    complete = (position + 1) // POOL * POOL
    for at in range(used, width, COLUMNS):
        column = at + tl.arange(0, COLUMNS)
        token = complete + column - used
        value = tl.full([COLUMNS], -1, tl.int64)
        if TAIL:
            value = tl.where(token <= position, token, -1)
        tl.store(out + column, value, mask=column < width)
