"""Cost of softmax attention over remembered tokens, dense or sparse."""

import math

from day0.kernels.common.attention_memory import AttentionMemoryAttributes, entry_shapes
from day0.kernels.common.causal import visible_pairs
from day0.kernels.interface.kind import Cost, Work


def attention_cost(a: AttentionMemoryAttributes, work: Work, limit: int | None = None) -> Cost:
    """The two matrix products, with each remembered entry read once per sequence.

    `limit`: positions a query attends to at most. Queries may choose the same ones, so the least read of the context
    is one query's choice. Over latents the cheaper of making keys and values and of absorbing kv_up counts.
    """
    pairs = visible_pairs(work, limit)
    entry = sum(math.prod(shape) for shape in entry_shapes(a).values())
    recalled = work.sequences * (work.context if limit is None else min(work.context, limit))
    owned = 0
    if a.memory == "kv":
        flops = 2.0 * pairs * a.heads * (a.query_dim + a.value_dim)
    else:
        owned = a.heads * (a.nope_dim + a.value_dim) * a.rank
        expanded = 2.0 * (recalled + work.tokens) * owned + 2.0 * pairs * a.heads * (a.query_dim + a.value_dim)
        absorbed = 2.0 * work.tokens * owned + 2.0 * pairs * a.heads * (2 * a.rank + a.rope_dim)
        flops = min(expanded, absorbed)
    ports = work.tokens * (a.heads * a.query_dim + entry)
    return Cost(
        flops=flops,
        bytes_read=(ports + recalled * entry) * work.activation_bytes + owned * work.weight_bytes,
        bytes_written=work.tokens * (a.heads * a.value_dim + entry) * work.activation_bytes,
    )
