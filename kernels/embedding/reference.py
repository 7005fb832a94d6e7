"""Plain PyTorch table lookup."""

import torch
from torch import Tensor

from day0.kernels.embedding.schema import EmbeddingAttributes


def embedding(
    a: EmbeddingAttributes,
    token_ids: Tensor,  # [N] int64
    *,
    weight: Tensor,  # [vocab_size, width]
) -> Tensor:  # [N, width]
    """x_n = scale * weight[token_ids_n]. Raises IndexError for an id outside the table."""
    x = torch.nn.functional.embedding(token_ids, weight)
    return x if a.scale == 1.0 else x * a.scale
