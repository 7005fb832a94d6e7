"""The chosen positions as a mask."""

import torch
from torch import Tensor

from day0.kernels.sparse_attention.schema import SparseAttentionAttributes


def chosen_mask(a: SparseAttentionAttributes, indices: Tensor, context: int) -> Tensor:
    """[n, context + n] bool: which positions each of a sequence's n new queries chose; -1 chooses nothing.

    `indices` is [n, width]. Raises ValueError on another width and on a position that is not one up to the query's own.
    """
    queries = indices.shape[0]
    own = torch.arange(context, context + queries, device=indices.device)[:, None]
    if indices.shape[1] != a.width:
        raise ValueError(f"indices have {indices.shape[1]} columns, not {a.width}")
    if bool(((indices < -1) | (indices > own)).any()):
        raise ValueError("indices hold a position after the query's own, or one below -1")
    length = context + queries
    mask = torch.zeros(queries, length + 1, dtype=torch.bool, device=indices.device)
    # Holes land in a column of their own, which is then dropped.
    return mask.scatter(1, indices.masked_fill(indices < 0, length), True)[:, :length]
