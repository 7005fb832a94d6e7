"""Plain PyTorch attention to chosen positions: the dense reference under the choice's mask."""

from torch import Tensor

from day0.kernels.common.attention_torch import attend, expand, remember
from day0.kernels.interface.batch import Batch
from day0.kernels.sparse_attention.schema import SparseAttentionAttributes
from day0.kernels.sparse_attention.selection import chosen_mask


def sparse_attention(
    a: SparseAttentionAttributes,
    q: Tensor,  # [N, heads * query_dim]
    indices: Tensor,  # [N, width] int64, positions within the sequence, -1 for none
    k_or_latent: Tensor,  # [N, kv_heads * head_dim], or [N, rank] already normed
    v_or_rope_key: Tensor | None = None,  # [N, kv_heads * value_dim], or [N, rope_dim] already rotated
    *,
    kv_up: Tensor | None = None,  # [heads * (nope_dim + value_dim), rank]
    batch: Batch,
    **pools: Tensor,  # keys, values; or latents, rope_keys
) -> Tensor:  # [N, heads * value_dim]
    """softmax(scale * q k^T) v over the positions listed for the query, the same for all heads (arXiv 2512.02556).

    A query with an empty list gets zeros, as torch's scaled_dot_product_attention gives for a row of False.
    Raises ValueError when the ports are not those of the memory or a position lies outside the query's past.
    """
    y = q.new_empty(q.shape[0], a.heads * a.value_dim)
    for rows, context, entries in remember(a, batch, k_or_latent, v_or_rope_key, pools):
        queries = q[rows].reshape(-1, a.heads, a.query_dim)
        visible = chosen_mask(a, indices[rows], context)
        y[rows] = attend(queries, *expand(a, entries, kv_up), visible, a.scale).flatten(1)
    return y
