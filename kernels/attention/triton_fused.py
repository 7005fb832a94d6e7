"""Causal attention by Triton kernels that read the paged cache in place."""

from torch import Tensor

from day0.kernels.attention.schema import AttentionAttributes
from day0.kernels.common.triton_attention_fused import attend_paged
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
    """As the reference, in every phase. Raises ContractError before anything runs on tensors that do not fit."""
    return attend_paged(a, batch, q, k_or_latent, v_or_rope_key, kv_up, pools)
