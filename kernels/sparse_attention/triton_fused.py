"""Attention to chosen positions by Triton kernels that read only those rows of the paged cache."""

from torch import Tensor

from day0.kernels.common.triton_attention_fused import attend_paged
from day0.kernels.common.triton_launch import require
from day0.kernels.interface.batch import Batch
from day0.kernels.sparse_attention.schema import SparseAttentionAttributes


def sparse_attention(
    a: SparseAttentionAttributes,
    q: Tensor,  # [N, heads * query_dim]
    indices: Tensor,  # [N, width] int64 or int32, positions within the sequence, -1 for none
    k_or_latent: Tensor,  # [N, kv_heads * head_dim], or [N, rank] already normed
    v_or_rope_key: Tensor | None = None,  # [N, kv_heads * value_dim], or [N, rope_dim] already rotated
    *,
    kv_up: Tensor | None = None,  # [heads * (nope_dim + value_dim), rank]
    batch: Batch,
    **pools: Tensor,  # keys, values; or latents, rope_keys
) -> Tensor:  # [N, heads * value_dim]
    """As the reference, in every phase, for lists that name a position at most once.

    Where the reference raises on a position that is not one up to the query's own, the query's row is NaN: the host
    does not see the lists. Raises ContractError before anything runs on tensors that do not fit.
    """
    wanted = indices.dim() == 2 and indices.shape[1] == a.width
    require(wanted, "sparse_attention/triton", f"indices of {a.width} columns, not {list(indices.shape)}")
    return attend_paged(a, batch, q, k_or_latent, v_or_rope_key, kv_up, pools, indices)
