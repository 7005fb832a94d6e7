"""How many tokens the queries of a step see."""

from day0.kernels.interface.kind import Work


def visible_pairs(work: Work, limit: int | None = None) -> float:
    """Pairs of a query and a position it attends to, at most `limit` a query, over all sequences of a step."""
    n = work.tokens / work.sequences
    free = n if limit is None else min(max(limit - work.context, 0), n)
    pairs = free * work.context + free * (free + 1) / 2
    return work.sequences * (pairs + (n - free) * (limit or 0))
