"""Cost of scoring every visible candidate; choosing the best is comparisons, not arithmetic."""

from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.interface.kind import Cost, Work


def cost(a: IndexSelectAttributes, work: Work) -> Cost:
    """A head's score costs its dot product, a relu and its share of the sum; pooling a few operations a channel."""
    n = work.tokens / work.sequences
    old, new = work.context // a.pool, (work.context + n) // a.pool
    pairs = work.sequences * (_candidates(work.context + n, a.pool) - _candidates(work.context, a.pool))
    weighted, gated = a.score == "relu_weighted", a.pooling == "softmax"
    per_token = {"none": 0, "mean": 1, "softmax": 6}[a.pooling] * a.dim
    per_pool = (5 * a.dim if a.pooled_norm_eps else 0) + 3 * a.pooled_rotary_dim
    flops = pairs * a.heads * (2 * a.dim + (3 if weighted else 2))
    flops += work.tokens * per_token + work.sequences * (new - old) * per_pool
    ports = work.tokens * (a.heads * a.dim + a.dim + weighted * a.heads + gated * a.dim)
    tail = 0 if a.pooling == "none" else (1 + gated) * a.dim
    owned = gated * a.pool * a.dim + (a.dim if a.pooled_norm_eps else 0)
    recalled = old * a.dim + work.context % a.pool * tail
    kept = (new - old) * a.dim + a.pool * tail
    return Cost(
        flops=float(flops),
        bytes_read=(ports + work.sequences * recalled) * work.activation_bytes + owned * work.weight_bytes,
        bytes_written=work.sequences * kept * work.activation_bytes + work.tokens * a.width * 8,
    )


def _candidates(tokens: float, pool: int) -> float:
    """Candidates seen by the queries at positions 0 .. tokens - 1 together: sum over i <= tokens of i // pool."""
    whole, rest = divmod(tokens, pool)
    return pool * whole * (whole - 1) / 2 + whole * (rest + 1)
