"""What a sequence has in memory, component by component: to compare, to check."""

from collections.abc import Sequence

import torch
from torch import Tensor

from day0.artifacts.layout import PAGE_TOKENS, Layout
from day0.kernels.interface.memory import Memory

State = dict[str, Tensor]


def state_of(layout: Layout, memory: Memory, *, slot: int, pages: Sequence[int], length: int) -> State:
    """Copies by component: [entries, ...] of the complete entries of a paged one, [...] of a slot.

    The last, incomplete entry of a component with several tokens per entry is left out: it holds what its operator
    needs to complete it, in no promised form.
    """
    state = {}
    for component in layout.components:
        pool = memory[component.name]
        if component.role == "per_sequence":
            state[component.name] = pool[slot].clone()
            continue
        each = PAGE_TOKENS // component.tokens_per_entry
        entry = torch.arange(length // component.tokens_per_entry)
        rows = torch.tensor(list(pages), dtype=torch.int64)[entry // each] * each + entry % each
        state[component.name] = pool[rows.to(pool.device)].clone()
    return state
