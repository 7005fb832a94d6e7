"""Drives operators with paged memory over sequences cut into steps, in scattered pages full of NaN, and reads back."""

import random
from collections.abc import Callable
from itertools import zip_longest

import torch
from torch import Tensor

from day0.artifacts.layout import Component, Layout
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.interface.memory import Memory


class PagedSequences:
    """Memory of several sequences: pools poisoned with NaN, pages and slots handed out in random order."""

    def __init__(
        self, components: tuple[Component, ...], lengths: list[int], dtype: torch.dtype = torch.float64, seed: int = 0
    ) -> None:
        order = random.Random(seed)
        needed = [-(-n // PAGE_TOKENS) for n in lengths]
        pages = order.sample(range(sum(needed) + 3), sum(needed))
        self.components = components
        self.lengths = lengths
        self.pages = [[pages.pop() for _ in range(n)] for n in needed]
        self.slots = order.sample(range(len(lengths) + 2), len(lengths))
        layout = Layout(components=components, vocab_size=1)
        memory = Memory.allocate(layout, pages=sum(needed) + 3, slots=len(lengths) + 2, dtype=dtype, poison=True)
        self.pools = dict(memory)

    def owned(self, owner: str) -> dict[str, Tensor]:
        """The pools of one operator, by the component's local name."""
        return {n.removeprefix(f"{owner}."): pool for n, pool in self.pools.items() if n.startswith(f"{owner}.")}

    def batch(self, active: list[int], context_lens: list[int], lengths: list[int]) -> Batch:
        return Batch.pack(
            [[0] * n for n in lengths],
            context_lens=context_lens,
            slots=[self.slots[s] for s in active],
            pages=[self.pages[s] for s in active],
        )

    def run(
        self,
        operator: Callable[..., Tensor],  # operator(*ports, batch=...) -> [N, ...]
        sequences: list[tuple[Tensor | None, ...]],  # the ports of each sequence, [L_s, ...]
        chunks: list[list[int]],  # how many tokens each sequence brings to each step; 0 leaves it out of that step
    ) -> list[Tensor]:  # the outputs of each sequence, [L_s, ...]
        done = [0] * len(sequences)
        outputs: list[list[Tensor]] = [[] for _ in sequences]
        for lengths in zip_longest(*chunks, fillvalue=0):
            active = [s for s, n in enumerate(lengths) if n]
            taken = [lengths[s] for s in active]
            batch = self.batch(active, [done[s] for s in active], taken)
            ports = [
                None if port[0] is None else torch.cat([port[s][done[s] : done[s] + lengths[s]] for s in active])
                for port in zip(*sequences, strict=True)
            ]
            for s, part in zip(active, operator(*ports, batch=batch).split(taken), strict=True):
                outputs[s].append(part)
                done[s] += lengths[s]
        assert done == self.lengths, "the chunks must cover the sequences"
        return [torch.cat(parts) for parts in outputs]

    def state(self, sequence: int) -> dict[str, Tensor]:
        """What the sequence has in memory: complete entries of token-paged components, the slot of the others."""
        found = {}
        for component in self.components:
            pool = self.pools[component.name]
            if component.role == "per_sequence":
                found[component.name] = pool[self.slots[sequence]]
                continue
            step = component.tokens_per_entry
            tokens = range(0, self.lengths[sequence] // step * step, step)
            page = self.pages[sequence]
            rows = [(page[t // PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS) // step for t in tokens]
            found[component.name] = pool[rows]
        return found

    def written(self, name: str) -> int:
        """How many rows of a pool hold no NaN."""
        pool = self.pools[name]
        return int((~pool.isnan().flatten(1).any(dim=1)).sum())


def randomise(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """The module in float64 with every parameter a fresh random number of useful size."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            size = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5
            parameter.copy_(size * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return module
