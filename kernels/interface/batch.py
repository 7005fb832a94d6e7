"""The tokens of one step, packed, and where each sequence's memory stands."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from day0.artifacts.layout import PAGE_TOKENS

__all__ = ["PAGE_TOKENS", "Batch", "Phase"]

Phase = Literal["prefill", "decode", "verify"]


@dataclass(frozen=True)
class Batch:
    """One step's work: the new tokens of S sequences, packed without padding.

    Sequence s owns rows cu_seqlens[s]:cu_seqlens[s+1] of every [N, ...] tensor. `context_lens[s]` tokens of it are
    already in memory (0 for a fresh sequence); its new tokens stand at positions context_lens[s] .. + n_s - 1.
    A kernel finds token t of sequence s in page `page_table[s, t // PAGE_TOKENS]`, row `t % PAGE_TOKENS`, and the
    per-sequence state in slot `slots[s]`. A fresh sequence's slot holds whatever its last owner left: an
    implementation starts from the component's initial value where context_lens[s] == 0 and never reads the slot.
    """

    token_ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    cu_seqlens: Tensor  # [S + 1] int64
    context_lens: Tensor  # [S] int64: tokens in memory before this step
    slots: Tensor  # [S] int64
    page_table: Tensor  # [S, P] int64; entries past a sequence's last page are never read
    phase: Phase = "prefill"
    # [S] int64, verify only: how many tokens of the previous verify step were accepted (state commits with them).
    commit: Tensor | None = None
    # [M] int64: the rows whose logits are asked for, in that order; None: all N.
    asked: Tensor | None = None

    @property
    def sequences(self) -> int:
        return self.cu_seqlens.shape[0] - 1

    def asked_rows(self, x: Tensor) -> Tensor:
        """x's [N, channels] rows whose logits are asked for [M, channels]."""
        return x if self.asked is None else x[self.asked]

    def spans(self) -> list[tuple[int, int, int]]:
        """(first row, end row, context length) of each sequence, as Python ints: for references, not for kernels."""
        ends = self.cu_seqlens.tolist()
        return [(a, b, c) for a, b, c in zip(ends[:-1], ends[1:], self.context_lens.tolist(), strict=True)]

    def token_slots(self, sequence: int, start: int, end: int) -> Tensor:
        """Flat pool rows [end - start] of tokens start..end-1 of a sequence: page * PAGE_TOKENS + row."""
        t = torch.arange(start, end, device=self.page_table.device)
        return self.page_table[sequence, t // PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS

    @staticmethod
    def pack(
        sequences: list[list[int]],
        *,
        context_lens: list[int],
        slots: list[int],
        pages: list[list[int]],
        phase: Phase = "prefill",
        device: torch.device | str = "cpu",
    ) -> "Batch":
        """Pack Python lists: per sequence its new token ids, context length, slot and pages."""
        lengths = [len(ids) for ids in sequences]
        width = max((len(p) for p in pages), default=1) or 1

        def long(values: Any) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return Batch(
            token_ids=long([i for ids in sequences for i in ids]),
            positions=long([c + i for c, n in zip(context_lens, lengths, strict=True) for i in range(n)]),
            cu_seqlens=long([sum(lengths[:i]) for i in range(len(lengths) + 1)]),
            context_lens=long(context_lens),
            slots=long(slots),
            page_table=long([p + [0] * (width - len(p)) for p in pages]).reshape(len(pages), width),
            phase=phase,
        )
