"""How references read and write token-paged pools."""

from torch import Tensor

from day0.kernels.interface.batch import Batch


def append_tokens(pool: Tensor, batch: Batch, sequence: int, start: int, rows: Tensor) -> None:
    """Writes rows [n, ...] as the entries of tokens start .. start + n - 1 of a sequence, in place."""
    pool[batch.token_slots(sequence, start, start + rows.shape[0])] = rows.reshape(rows.shape[0], *pool.shape[1:])


def sequence_tokens(pool: Tensor, batch: Batch, sequence: int, end: int) -> Tensor:
    """The entries [end, ...] of a sequence's tokens 0 .. end - 1."""
    return pool[batch.token_slots(sequence, 0, end)]


def entry_rows(batch: Batch, sequence: int, first: int, last: int, tokens_per_entry: int) -> Tensor:
    """Rows [last - first] of entries first .. last - 1 in a pool with one entry every `tokens_per_entry` tokens."""
    slots = batch.token_slots(sequence, first * tokens_per_entry, last * tokens_per_entry)
    return slots[::tokens_per_entry] // tokens_per_entry
