"""Matrix product of at most 8 tokens in Triton, where it beats cuBLAS; of more it is PyTorch's (see contract.py)."""

import torch
from torch import Tensor

from day0.kernels.linear import reference
from day0.kernels.linear.contract import FEW_ROWS
from day0.kernels.linear.schema import LinearAttributes
from day0.kernels.linear.triton_product import config_for, product, workspace


def linear(
    a: LinearAttributes,
    x: Tensor,  # [N, in_features]
    *,
    weight: Tensor,  # [out_features, in_features]
    bias: Tensor | None = None,  # [out_features]
) -> Tensor | tuple[Tensor, ...]:  # [N, out_features], or its parts
    """As the reference: y = scale * (x W^T + b), then the split.

    Which product runs is decided by the shape of x alone, so that a CUDA graph may hold either.
    """
    if x.shape[0] > FEW_ROWS:
        return reference.linear(a, x, weight=weight, bias=bias)
    config = config_for(x.shape[0], a.in_features, a.out_features)
    y = x.new_empty(x.shape[0], a.out_features)
    needed = workspace(x.shape[0], a.out_features, config)
    scratch = torch.empty(needed, dtype=torch.float32, device=x.device) if needed else None
    product(x, weight, y, bias=bias, scale=a.scale, scratch=scratch, config=config)
    return y.split(a.split, dim=-1) if a.split else y
