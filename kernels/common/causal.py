"""Which tokens a query sees, as a mask and as a count."""

import torch
from torch import Tensor

from day0.kernels.interface.kind import Work


def causal_mask(context: int, tokens: int, device: torch.device) -> Tensor:
    """[tokens, context + tokens] bool: query i, at position context + i, sees the positions up to its own."""
    ones = torch.ones(tokens, context + tokens, dtype=torch.bool, device=device)
    return ones.tril(diagonal=context)


def visible_pairs(work: Work, limit: int | None = None) -> float:
    """Pairs of a query and a position it attends to, at most `limit` a query, over all sequences of a step."""
    n = work.tokens / work.sequences
    free = n if limit is None else min(max(limit - work.context, 0), n)
    pairs = free * work.context + free * (free + 1) / 2
    return work.sequences * (pairs + (n - free) * (limit or 0))
