"""Cost of a table lookup: one row per token, the rest of the table stays unread."""

from day0.kernels.embedding.schema import EmbeddingAttributes
from day0.kernels.interface.kind import Cost, Work

ID_BYTES = 8


def cost(a: EmbeddingAttributes, work: Work) -> Cost:
    return Cost(
        flops=float(work.tokens * a.width * (a.scale != 1.0)),
        bytes_read=work.tokens * (a.width * work.weight_bytes + ID_BYTES),
        bytes_written=work.tokens * a.width * work.activation_bytes,
    )
