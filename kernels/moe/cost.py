"""Cost of a mixture of experts: router, the experts that are hit, the shared expert."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.moe.schema import MoeAttributes


def experts_hit(a: MoeAttributes, tokens: int) -> float:
    """Expected number of distinct experts that `tokens` tokens use when each picks top_k of them at random."""
    return a.experts * (1.0 - (1.0 - a.top_k / a.experts) ** tokens)


def cost(a: MoeAttributes, work: Work) -> Cost:
    """Weights of an expert are read once a step if any token needs it; how many do is taken as under even routing."""
    expert = 3 * a.hidden * a.width
    always = a.experts * a.width + 3 * a.shared_hidden * a.width + (a.shared_gate == "sigmoid") * a.width
    bias_bytes = 4 * a.experts * a.selection_bias
    vectors = work.tokens * a.width * work.activation_bytes
    return Cost(
        flops=2.0 * work.tokens * (always + a.top_k * expert),
        bytes_read=(always + experts_hit(a, work.tokens) * expert) * work.weight_bytes + bias_bytes + vectors,
        bytes_written=vectors,
    )
