"""How token-paged pools are read and written: by pages in any order, one entry a token or one every few tokens."""

import torch

from day0.kernels.common.paged import append_tokens, entry_rows, sequence_tokens
from day0.kernels.interface.batch import PAGE_TOKENS, Batch

PAGES = [[4, 1, 3], [0, 2]]


def batch():
    return Batch.pack([[0] * 100, [0] * 70], context_lens=[0, 0], slots=[0, 1], pages=PAGES)


def row(sequence, token):
    return PAGES[sequence][token // PAGE_TOKENS] * PAGE_TOKENS + token % PAGE_TOKENS


def test_tokens_are_appended_in_their_pages_and_read_back():
    pool = torch.full((5 * PAGE_TOKENS, 2, 3), float("nan"))
    rows = torch.randn(100, 6)
    append_tokens(pool, batch(), 0, 0, rows[:30])
    append_tokens(pool, batch(), 0, 30, rows[30:])
    other = torch.randn(70, 6)
    append_tokens(pool, batch(), 1, 0, other)
    for sequence, written in enumerate((rows, other)):
        for token, entry in enumerate(written):
            assert torch.equal(pool[row(sequence, token)], entry.view(2, 3))
        end = len(written) - 7
        assert torch.equal(sequence_tokens(pool, batch(), sequence, end), written[:end].view(end, 2, 3))
    assert int((~pool.isnan()).sum()) == (100 + 70) * 6


def test_entries_of_several_tokens():
    for tokens in (1, 4, 16):
        for first, last in ((0, 0), (0, 100 // tokens), (3, 5), (1, 100 // tokens)):
            got = entry_rows(batch(), 0, first, last, tokens)
            assert got.tolist() == [row(0, entry * tokens) // tokens for entry in range(first, last)]
