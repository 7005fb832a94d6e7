"""Drives a stateful operator over sequences cut into steps, as an engine would."""

from collections.abc import Callable
from itertools import zip_longest

import torch
from torch import Tensor

from day0.kernels.interface.batch import Batch


def run_steps(
    operator: Callable[..., Tensor],  # operator(*ports, batch=...) -> [N, ...]
    sequences: list[tuple[Tensor | None, ...]],  # the ports of each sequence, [L_s, ...]; a port left out is None
    chunks: list[list[int]],  # how many tokens each sequence brings to each step; 0 leaves it out of that step
    slots: list[int],
) -> list[Tensor]:  # the outputs of each sequence, [L_s, ...]
    done = [0] * len(sequences)
    outputs: list[list[Tensor]] = [[] for _ in sequences]
    for lengths in zip_longest(*chunks, fillvalue=0):
        active = [s for s, n in enumerate(lengths) if n]
        batch = Batch.pack(
            [[0] * lengths[s] for s in active],
            context_lens=[done[s] for s in active],
            slots=[slots[s] for s in active],
            pages=[[] for _ in active],
        )
        ports = [
            None if port[0] is None else torch.cat([port[s][done[s] : done[s] + lengths[s]] for s in active])
            for port in zip(*sequences, strict=True)
        ]
        y = operator(*ports, batch=batch)
        for s, part in zip(active, y.split([lengths[s] for s in active]), strict=True):
            outputs[s].append(part)
            done[s] += lengths[s]
    assert done == [s[0].shape[0] for s in sequences], "the chunks must cover the sequences"
    return [torch.cat(parts) for parts in outputs]
