"""Cost of a hashed n-gram embedding: a few table rows per token, two projections, and elementwise work per stream."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.ngram_embedding.schema import NgramEmbeddingAttributes

ID_BYTES = 8


def cost(a: NgramEmbeddingAttributes, work: Work) -> Cost:
    """Three norms of four operations per channel; gate, value and sums one each; silu four. Hashing is not counted."""
    projections = (a.channels + a.width) * a.embed_dim
    per_channel = 3 * 4 + 2 + 1 + 2 * a.conv_kernel + 4 + 2
    owned = projections + a.channels * (3 + a.conv_kernel)
    state = work.sequences * (a.channels * a.window * work.activation_bytes + (a.ngram_size - 1) * ID_BYTES)
    rows = work.tokens * (a.embed_dim * work.weight_bytes + ID_BYTES)
    stream = work.tokens * a.channels * work.activation_bytes
    return Cost(
        flops=float(work.tokens * (2 * projections + per_channel * a.channels)),
        bytes_read=float(owned * work.weight_bytes + rows + stream + (state if work.context > 0 else 0)),
        bytes_written=float(stream + state),
    )
