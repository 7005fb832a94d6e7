"""The smallest engine: a package, one memory, sequences that step together or apart."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from day0.artifacts.layout import Layout
from day0.errors import Day0Error
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.interface.memory import Memory
from day0.kernels.interface.package import Package


@dataclass
class Sequence:
    """One sequence's place in memory: its slot, its pages, and how many of its tokens are already there."""

    slot: int
    pages: list[int]
    length: int = 0


@dataclass(frozen=True)
class Greedy:
    """A greedy continuation: ids, their log-probabilities, and best minus second-best logit at each step."""

    ids: list[int]
    logprobs: list[float]
    margins: list[float]
    logits: list[Tensor] = field(default_factory=list)


class Runner:
    """Runs a package over a Memory of `sequences` slots of `tokens` tokens each.

    Pages are dealt out so that a sequence's are neither contiguous nor in order: code that forgets the page table
    reads NaN (`poison`).
    """

    def __init__(
        self,
        model: Package,
        *,
        sequences: int,
        tokens: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        poison: bool = False,
    ) -> None:
        self.model = model
        self.device = device
        self.pages_each = -(-tokens // PAGE_TOKENS)
        self.dtype = dtype or _activation_dtype(model)
        self.capacity = sequences
        self.layout = model.layout()
        _check_positions(self.layout, tokens)
        self.memory = Memory.allocate(
            self.layout,
            pages=self.pages_each * sequences,
            slots=sequences,
            dtype=self.dtype,
            device=device,
            poison=poison,
        )
        self.free = list(range(sequences))

    def open(self) -> Sequence:
        """A fresh sequence. Raises Day0Error when all slots are taken."""
        if not self.free:
            raise Day0Error(f"all {self.capacity} sequences are in use", hint="close one, or make a larger Runner")
        slot = self.free.pop()
        pages = [page * self.capacity + slot for page in reversed(range(self.pages_each))]
        return Sequence(slot, pages)

    def close(self, sequence: Sequence) -> None:
        self.free.append(sequence.slot)

    @torch.no_grad()
    def step(
        self,
        sequences: list[Sequence],
        token_ids: list[list[int]],
        phase: Literal["prefill", "decode", "verify"] = "prefill",
    ) -> Tensor:
        """Advance each sequence by its token ids; logits [N, vocab] of all of them, packed in order."""
        for sequence, ids in zip(sequences, token_ids, strict=True):
            self._check(sequence, ids)
        batch = Batch.pack(
            token_ids,
            context_lens=[s.length for s in sequences],
            slots=[s.slot for s in sequences],
            pages=[s.pages for s in sequences],
            phase=phase,
            device=self.device,
        )
        logits: Tensor = self.model(batch, self.memory)
        for sequence, ids in zip(sequences, token_ids, strict=True):
            sequence.length += len(ids)
        return logits

    def prefill(self, ids: list[int], *, chunks: list[int] | None = None) -> tuple[Sequence, Tensor]:
        """A fresh sequence through a prompt, in one step or in chunks of these sizes (the last one repeats)."""
        sequence = self.open()
        sizes = iter(chunks or [len(ids)])
        rows: list[Tensor] = []
        start, size = 0, next(sizes)
        try:
            while start < len(ids) or not rows:
                rows.append(self.step([sequence], [ids[start : start + size]]))
                start, size = start + size, next(sizes, size)
        except BaseException:
            self.close(sequence)
            raise
        return sequence, torch.cat(rows)

    def greedy(self, ids: list[int], *, count: int, stop: tuple[int, ...] = ()) -> Greedy:
        """Greedy continuation of a prompt by at most `count` tokens; a stop id ends it and is included."""
        sequence, logits = self.prefill(ids)
        out = Greedy([], [], [])
        row = logits[-1]
        try:
            for index in range(count):
                best = row.double().topk(2)
                token = int(best.indices[0])
                out.ids.append(token)
                out.logprobs.append(float(row.double().log_softmax(-1)[token]))
                out.margins.append(float(best.values[0] - best.values[1]))
                out.logits.append(row)
                if token in stop or index + 1 == count:
                    break
                row = self.step([sequence], [[token]], "decode")[-1]
        finally:
            self.close(sequence)
        return out

    def _check(self, sequence: Sequence, ids: list[int]) -> None:
        room = self.pages_each * PAGE_TOKENS
        if sequence.length + len(ids) > room:
            raise Day0Error(
                f"{sequence.length + len(ids)} tokens exceed the {room} a sequence has room for",
                hint="make the Runner with more tokens",
            )
        limit = self.layout.max_positions
        if limit is not None and sequence.length + len(ids) > limit:
            raise Day0Error(f"the model has {limit} positions", hint="give a shorter prompt or fewer new tokens")
        _check_ids(self.layout, ids)


def check_prompt(layout: Layout, ids: list[int], *, more: int) -> None:
    """Raise Day0Error where a model of this layout could not continue `ids` by `more` tokens."""
    _check_ids(layout, ids)
    _check_positions(layout, len(ids) + more)


def _check_ids(layout: Layout, ids: list[int]) -> None:
    if not ids:
        raise Day0Error("a step needs at least one token", hint="give a prompt that is not empty")
    wrong = [i for i in ids if not 0 <= i < layout.vocab_size]
    if wrong:
        raise Day0Error(
            f"token id {wrong[0]} is outside the vocabulary of {layout.vocab_size}",
            hint="check the tokenizer against the model",
        )


def _check_positions(layout: Layout, tokens: int) -> None:
    limit = layout.max_positions
    if limit is not None and tokens > -(-limit // PAGE_TOKENS) * PAGE_TOKENS:
        raise Day0Error(
            f"{tokens} tokens are asked for, the model has {limit} positions",
            hint="give a shorter prompt or fewer new tokens",
        )


def _activation_dtype(model: Package) -> torch.dtype:
    """The dtype most floating weights have: float32-kept ones are few."""
    counts: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return max(counts, key=lambda d: counts[d])
