"""Plain PyTorch matrix product."""

import torch
from torch import Tensor

from day0.kernels.common.numerics import upcast
from day0.kernels.linear.schema import LinearAttributes


def linear(
    a: LinearAttributes,
    x: Tensor,  # [N, in_features]
    *,
    weight: Tensor,  # [out_features, in_features]
    bias: Tensor | None = None,  # [out_features]
) -> Tensor | tuple[Tensor, ...]:  # [N, out_features], or its parts
    """y = scale * (x W^T + b), then softcap * tanh(y / softcap), then the split."""
    if a.float32:
        x, weight, bias = upcast(x), upcast(weight), None if bias is None else upcast(bias)
    y = torch.nn.functional.linear(x, weight, bias)
    if a.scale != 1.0:
        y = y * a.scale
    if a.softcap > 0.0:
        y = a.softcap * torch.tanh(y / a.softcap)
    return y.split(a.split, dim=-1) if a.split else y
