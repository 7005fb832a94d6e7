"""Cost of dense causal attention."""

from day0.kernels.attention.schema import AttentionAttributes
from day0.kernels.common.attention_cost import attention_cost
from day0.kernels.interface.kind import Cost, Work


def cost(a: AttentionAttributes, work: Work) -> Cost:
    """Every query attends to all positions up to its own."""
    return attention_cost(a, work)
