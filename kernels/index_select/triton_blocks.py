# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Which rows a program works on, and where a sequence's entries are."""

import triton
import triton.language as tl

_BLOCK_SEQUENCES: tl.constexpr = tl.constexpr(128)


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
