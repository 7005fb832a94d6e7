"""Normalisation on the fused Triton kernel; the function of the reference."""

import torch
from torch import Tensor

from day0.kernels.norm.schema import NormAttributes
from day0.kernels.norm.triton_norm import normalise


def norm(
    a: NormAttributes,
    x: Tensor,  # [N, C], C a multiple of groups * dim; or [N, ..., C]
    gate: Tensor | None = None,  # like x
    *,
    weight: Tensor | None = None,  # [groups * dim]
    bias: Tensor | None = None,  # [groups * dim]
) -> Tensor:  # like x
    """As the reference: y = w * x / sqrt(mean(x^2) + eps), or its layer-norm form, gated before or after it."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flat = x.reshape(-1, x.shape[-1])
    z = None if gate is None else gate.reshape(flat.shape)
    normalise(a, flat, z, weight=weight, bias=bias, out=out.view(flat.shape))
    return out
