"""Attention to chosen latents with kv_up absorbed into queries and results: the reference's twin for decode."""

from torch import Tensor

from day0.kernels.common.attention_torch import attend_absorbed, remember
from day0.kernels.interface.batch import Batch
from day0.kernels.sparse_attention.schema import SparseAttentionAttributes
from day0.kernels.sparse_attention.selection import chosen_mask


def sparse_attention(
    a: SparseAttentionAttributes,
    q: Tensor,  # [N, heads * query_dim]
    indices: Tensor,  # [N, width] int64
    k_or_latent: Tensor,  # [N, rank]
    v_or_rope_key: Tensor | None = None,  # [N, rope_dim]
    *,
    kv_up: Tensor,  # [heads * (nope_dim + value_dim), rank]
    batch: Batch,
    **pools: Tensor,  # latents, rope_keys
) -> Tensor:  # [N, heads * value_dim]
    """As the reference, without ever making a key or a value; memory "latent" only."""
    y = q.new_empty(q.shape[0], a.heads * a.value_dim)
    for rows, context, entries in remember(a, batch, k_or_latent, v_or_rope_key, pools):
        queries = q[rows].reshape(-1, a.heads, a.query_dim)
        visible = chosen_mask(a, indices[rows], context)
        y[rows] = attend_absorbed(a, queries, entries, kv_up, visible).flatten(1)
    return y
