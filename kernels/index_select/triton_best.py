# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Exact selection of the best of a window of scores that stays in registers, and the order of float scores."""

import triton
import triton.language as tl

# Below the key of every score, -inf too: a slot that holds none.
NOTHING: tl.constexpr = tl.constexpr(-(2**31))
_BLOCK_SEQUENCES: tl.constexpr = tl.constexpr(128)


@triton.jit
def ordered(scores):
    """float32 scores as int32 keys in the same order: both zeros are equal, NaN is above all (as torch sorts it)."""
    scores = tl.where(scores == 0.0, 0.0, scores)
    bits = scores.to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(scores != scores, 0x7FFFFFFF, keys)


@triton.jit
def best(keys, k, R: tl.constexpr, W: tl.constexpr):
    """The best min(k, valid) of each row's window keys [R, T, B], T * B = W, in slot order; equal keys: first slots.

    The cut is the k-th largest key. It is found bit by bit from the highest (a key is at least the cut's first bits or
    not: one count per bit), and the search stops as soon as exactly k keys are at least what is known of the cut.
    Above it all are kept, on it the first that still fit. Counts are integers, so their order does not matter.

    Gives keep [R, T, B], the rank of each kept slot among the kept ones [R, T, B], and how many are kept [R].
    """
    flat = tl.reshape(keys, [R, W])
    valid = tl.sum((flat > NOTHING).to(tl.int32), axis=1)
    cut = tl.full([R], NOTHING, tl.int32)
    reached = valid
    bit = 31
    while (bit >= 0) & (tl.max(reached, axis=0) > k):
        trial = cut ^ (1 << bit)
        n = tl.sum((flat >= trial[:, None]).to(tl.int32), axis=1)
        taken = (reached > k) & (n >= k)
        cut = tl.where(taken, trial, cut)
        reached = tl.where(taken, n, reached)
        bit -= 1
    room = k - tl.sum((flat > cut[:, None]).to(tl.int32), axis=1)
    room = room[:, None, None]
    above = keys > cut[:, None, None]
    level = (keys == cut[:, None, None]) & (keys > NOTHING)
    # Two counts in one scan: W <= 32768 slots, so neither half can overflow into the other.
    counts = above.to(tl.int32) + (level.to(tl.int32) << 16)
    rows = tl.sum(counts, axis=2)
    before = tl.cumsum(counts, axis=2) - counts + (tl.cumsum(rows, axis=1) - rows)[:, :, None]
    levels = before >> 16
    keep = above | (level & (levels < room))
    return keep, (before & 0xFFFF) + tl.minimum(levels, room), tl.minimum(valid, k)


@triton.jit
def sequence_of(block, cu_seqlens, sequences, R: tl.constexpr):
    """The sequence whose rows block number `block` holds, when sequence s begins at block cu_seqlens[s] // R + s.

    ceil(n / R) blocks always fit before the next sequence's first, so N // R + S blocks are enough for any packing;
    with R = 1 the blocks are the rows themselves.
    """
    found = tl.zeros([], tl.int32)
    for at in range(0, sequences, _BLOCK_SEQUENCES):
        s = at + tl.arange(0, _BLOCK_SEQUENCES)
        starts = tl.load(cu_seqlens + s, mask=s < sequences, other=0)
        if R > 1:
            starts = starts // R + s
        found += tl.sum(((starts <= block) & (s < sequences)).to(tl.int32), axis=0)
    return found - 1


@triton.jit
def first_row(block, start, sequence, R: tl.constexpr):
    """First row of that block, given its sequence and the sequence's first row."""
    if R > 1:
        return start + (block - start // R - sequence) * R
    else:
        return block.to(tl.int64)


@triton.jit
def entry_of(pages, number, mask, ENTRIES: tl.constexpr):
    """Pool rows of a sequence's entries `number`, ENTRIES to a page; int64, as a pool's offsets pass 2^31."""
    return tl.load(pages + number // ENTRIES, mask=mask, other=0) * ENTRIES + number % ENTRIES


@triton.jit
def write_tokens(out, keep, place, ids, POOL: tl.constexpr):
    """Stores the tokens of the kept candidates: pool j is tokens j * POOL .. + POOL - 1. `out` [R, 1, 1] pointers."""
    for i in tl.static_range(POOL):
        tl.store(out + place * POOL + i, ids.to(tl.int64) * POOL + i, mask=keep)


@triton.jit
def write_rest(out, position, count, width, rows, POOL: tl.constexpr, TAIL: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores what follows the chosen pools' tokens in rows of out [R]: the incomplete pool's tokens, then -1.

    position [R] of the queries, -1 in a row that nobody owns; count [R] pools chosen; rows [R] bool, which to write.
    """
    used = (count * POOL)[:, None]
    complete = ((position + 1) // POOL * POOL)[:, None]
    for at in range(0, width, COLUMNS):
        column = at + tl.arange(0, COLUMNS)[None, :]
        token = complete + column - used
        if TAIL:
            value = tl.where(token <= position[:, None], token, -1)
        else:
            value = tl.full([1, COLUMNS], -1, tl.int64)
        tl.store(out[:, None] + column, value, mask=rows[:, None] & (column >= used) & (column < width))
