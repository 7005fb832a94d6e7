"""Cost of attention to chosen positions."""

from dataclasses import replace

from day0.kernels.common.attention_cost import attention_cost
from day0.kernels.interface.kind import Cost, Work
from day0.kernels.sparse_attention.schema import SparseAttentionAttributes


def cost(a: SparseAttentionAttributes, work: Work) -> Cost:
    """At most `width` positions a query; the choice itself is read too."""
    dense = attention_cost(a, work, limit=a.width)
    return replace(dense, bytes_read=dense.bytes_read + work.tokens * a.width * 8)
