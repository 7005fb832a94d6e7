"""A model in whole numbers, whose next token depends on every entry and state it should have in memory, and on nothing
else: any fault in paging, state or order changes the text."""

import torch
from torch import Tensor

from day0.artifacts.layout import Component, Layout
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.memory import Memory

VOCABULARY = 11
_STATE = Component(name="state", role="per_sequence", shape=(1,), dtype="int64", rollback="restore")
_PAGED = (
    Component(name="keys", role="token_paged", shape=(1,), dtype="float32", rollback="truncate"),
    Component(name="pooled", role="token_paged", shape=(1,), dtype="float32", tokens_per_entry=4, rollback="truncate"),
)
STATEFUL = Layout(components=(*_PAGED, _STATE), vocab_size=VOCABULARY)
STATELESS = Layout(components=_PAGED, vocab_size=VOCABULARY)


class CountingModel:
    """forward(batch, memory) -> logits [N, VOCABULARY]. `wild` makes text without repetition."""

    def __init__(self, layout: Layout, *, wild: bool = False) -> None:
        self.layout = layout
        self.wild = wild
        self.steps: list[tuple[str, int, int]] = []  # phase, sequences, tokens

    def __call__(self, batch: Batch, memory: Memory) -> Tensor:
        self.steps.append((batch.phase, batch.sequences, batch.token_ids.numel()))
        logits = torch.empty(batch.token_ids.numel(), VOCABULARY)
        for s, (first, end, context) in enumerate(batch.spans()):
            slot = int(batch.slots[s])
            state = 1
            if "state" in memory and context:
                state = int(memory["state"][slot])
            for row in range(first, end):
                token, position = int(batch.token_ids[row]), int(batch.positions[row])
                assert position == context + row - first
                at = int(batch.token_slots(s, position, position + 1))
                memory["keys"][at] = token
                if position % 4 == 3:
                    group = batch.token_slots(s, position - 3, position + 1)
                    memory["pooled"][at // 4] = memory["keys"][group].sum()
                state = (state * 31 + token) % 10007
                logits[row] = self._logits(batch, memory, s, position, state)
            if "state" in memory:
                memory["state"][slot] = state
        return logits

    def _logits(self, batch: Batch, memory: Memory, s: int, position: int, state: int) -> Tensor:
        seen = memory["keys"][batch.token_slots(s, 0, position + 1)].flatten()
        pools = (position + 1) // 4
        pooled = memory["pooled"][batch.token_slots(s, 0, pools * 4)[::4] // 4].flatten()
        weights = torch.arange(1, seen.numel() + 1) % 7 + 1
        mixed = (seen * weights).sum() + 3 * pooled.sum()
        if not torch.isfinite(mixed):
            return torch.full((VOCABULARY,), float("nan"))
        last = [int(t) for t in seen[-2:]]
        number = int(mixed) * 17 + (state if "state" in memory else 0)
        if not self.wild and number % 5:  # most of the time it goes on as the last two tokens say
            number = sum(last) * 3 + 1
        best = number % VOCABULARY
        scores = -torch.tensor([(v - best) % VOCABULARY for v in range(VOCABULARY)], dtype=torch.float32)
        return scores * 0.5
