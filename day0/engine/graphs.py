"""Decoding and verifying by replay: steps of few shapes in buffers that never move, captured on a GPU.

A step is padded to a bucket. Padded sequences stand behind the real ones, with no context, in the page and slot that
nobody owns, so that what they compute and write is nobody's. On a CPU the same padded step runs uncaptured: a fault of
padding shows there, too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from day0.artifacts.layout import PAGE_TOKENS
from day0.engine.memory.store import NULL_PAGE, NULL_SLOT
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.memory import Memory

Forward = Callable[[Batch, Memory], Tensor]


@dataclass(frozen=True)
class Bucket:
    """The extents of a padded step."""

    phase: str
    sequences: int
    tokens: int
    pages: int  # of a row of the page table


@dataclass
class _Captured:
    batch: Batch
    logits: Tensor | None = None
    graph: torch.cuda.CUDAGraph | None = None


class Replayer:
    """A forward that replays decode and verify steps of up to `sequences` sequences and runs all others as they are."""

    def __init__(self, forward: Forward, memory: Memory, *, sequences: int, device: torch.device | str) -> None:
        self._forward = forward
        self._memory = memory
        self._sequences = sequences
        self._device = torch.device(device)
        self._captured: dict[Bucket, _Captured] = {}

    @property
    def buckets(self) -> list[Bucket]:
        """Those met so far."""
        return list(self._captured)

    @torch.no_grad()
    def __call__(self, batch: Batch, memory: Memory) -> Tensor:
        """Logits of the real tokens that are asked for; of a replayed step they are overwritten by the next one."""
        if batch.phase == "prefill" or batch.sequences > self._sequences:
            return self._forward(batch, memory)
        bucket = bucket_of(batch)
        captured = self._captured.get(bucket)
        if captured is None:
            captured = self._captured[bucket] = _Captured(_empty(bucket, self._device))
        _fill(captured.batch, batch)
        if self._device.type != "cuda":
            return batch.asked_rows(self._forward(captured.batch, memory)[: batch.token_ids.shape[0]])
        if captured.graph is None:
            self._capture(captured)
        assert captured.graph is not None and captured.logits is not None
        captured.graph.replay()
        return batch.asked_rows(captured.logits[: batch.token_ids.shape[0]])

    def _capture(self, captured: _Captured) -> None:
        """Runs the step once outside the graph, for whatever kernels set up on their first run, with every row padded:
        a real row's state would move twice."""
        real = captured.batch
        idle = _empty(
            Bucket(real.phase, real.sequences, real.token_ids.shape[0], real.page_table.shape[1]), self._device
        )
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._forward(idle, self._memory)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured.logits = self._forward(real, self._memory)
        captured.graph = graph


def bucket_of(batch: Batch) -> Bucket:
    """Extents rounded up to powers of two; a verify step has room for one more sequence, which takes padded tokens."""
    tokens = batch.token_ids.shape[0]
    if batch.phase == "decode":
        sequences = _power(batch.sequences)
        return Bucket("decode", sequences, sequences, _power(batch.page_table.shape[1]))
    padded = _power(tokens)
    sequences = _power(batch.sequences)
    # Each padded sequence holds at most a page of tokens, the only one it has.
    while (padded > tokens and sequences == batch.sequences) or padded - tokens > (
        (sequences - batch.sequences) * PAGE_TOKENS
    ):
        sequences *= 2
    return Bucket(batch.phase, sequences, padded, _power(batch.page_table.shape[1]))


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _empty(bucket: Bucket, device: torch.device) -> Batch:
    """A step of padding alone."""
    sequences, tokens = bucket.sequences, bucket.tokens

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    batch = Batch(
        token_ids=zeros(tokens),
        positions=zeros(tokens),
        cu_seqlens=zeros(sequences + 1),
        context_lens=zeros(sequences),
        slots=zeros(sequences),
        page_table=zeros(sequences, bucket.pages),
        phase=bucket.phase,  # type: ignore[arg-type]
    )
    _pad(batch, 0, 0)
    return batch


def _fill(padded: Batch, real: Batch) -> None:
    n, s, p = real.token_ids.shape[0], real.sequences, real.page_table.shape[1]
    padded.token_ids[:n].copy_(real.token_ids)
    padded.positions[:n].copy_(real.positions)
    padded.cu_seqlens[: s + 1].copy_(real.cu_seqlens)
    padded.context_lens[:s].copy_(real.context_lens)
    padded.slots[:s].copy_(real.slots)
    padded.page_table[:s, :p].copy_(real.page_table)
    _pad(padded, s, n)


def _pad(batch: Batch, sequences: int, tokens: int) -> None:
    """Make all from these extents on padding."""
    left, each = batch.token_ids.shape[0] - tokens, 1 if batch.phase == "decode" else PAGE_TOKENS
    rows = batch.cu_seqlens.shape[0] - 1 - sequences
    ends = [tokens + min(left, each * (i + 1)) for i in range(rows)]
    positions = [i % each for i in range(left)]
    batch.token_ids[tokens:] = 0
    batch.positions[tokens:] = torch.tensor(positions, dtype=torch.int64)
    batch.cu_seqlens[sequences + 1 :] = torch.tensor(ends, dtype=torch.int64)
    if sequences == 0:
        batch.cu_seqlens[0] = 0
    batch.context_lens[sequences:] = 0
    batch.slots[sequences:] = NULL_SLOT
    batch.page_table[sequences:] = NULL_PAGE
