"""Plain PyTorch causal attention: keys and values of every head are made, then compared."""

from torch import Tensor

from day0.kernels.attention.schema import AttentionAttributes
from day0.kernels.common.attention_torch import attend, causal_mask, expand, remember
from day0.kernels.interface.batch import Batch


def attention(
    a: AttentionAttributes,
    q: Tensor,  # [N, heads * query_dim]
    k_or_latent: Tensor,  # [N, kv_heads * head_dim], or [N, rank] already normed
    v_or_rope_key: Tensor | None = None,  # [N, kv_heads * value_dim], or [N, rope_dim] already rotated
    *,
    kv_up: Tensor | None = None,  # [heads * (nope_dim + value_dim), rank]
    batch: Batch,
    **pools: Tensor,  # keys, values; or latents, rope_keys
) -> Tensor:  # [N, heads * value_dim]
    """softmax(scale * q k^T) v over the positions up to the query's own, per head (arXiv 1706.03762).

    Scores and softmax are float32 (float64 in float64), probabilities are cast to the activation dtype.
    Raises ValueError when the ports are not those of the memory.
    """
    y = q.new_empty(q.shape[0], a.heads * a.value_dim)
    for rows, context, entries in remember(a, batch, k_or_latent, v_or_rope_key, pools):
        queries = q[rows].reshape(-1, a.heads, a.query_dim)
        visible = causal_mask(context, queries.shape[0], q.device)
        y[rows] = attend(queries, *expand(a, entries, kv_up), visible, a.scale).flatten(1)
    return y
