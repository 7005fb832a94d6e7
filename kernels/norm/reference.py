"""Plain PyTorch normalisation, in float32 inside (float64 for float64 inputs)."""

import torch
from torch import Tensor

from day0.kernels.common.numerics import activation, upcast
from day0.kernels.norm.schema import NormAttributes


def norm(
    a: NormAttributes,
    x: Tensor,  # [N, C], C a multiple of groups * dim; or [N, ..., C]
    gate: Tensor | None = None,  # like x
    *,
    weight: Tensor | None = None,  # [groups * dim]
    bias: Tensor | None = None,  # [groups * dim]
) -> Tensor:  # like x
    """y = w * x / sqrt(mean(x^2) + eps), or its layer-norm form, per group of `dim` channels (arXiv 1910.07467).

    With a gate z: y * act(z) after the norm, or norm(x * act(z)) before it (Mamba-2's order, arXiv 2405.21060).
    Raises ValueError when there is a gate and the attributes say none, or the other way round.
    """
    if (gate is None) != (a.gate == "none"):
        raise ValueError(f"gate: {a.gate} {'needs the port gate' if gate is None else 'takes no port gate'}")
    inner: Tensor = upcast(x).unflatten(-1, (-1, a.groups, a.dim))
    z = None if gate is None else upcast(gate).unflatten(-1, (-1, a.groups, a.dim))
    if z is not None and a.gate_order == "before_norm":
        inner = inner * activation(a.gate, z)
    if a.form == "layer":
        inner = inner - inner.mean(-1, keepdim=True)
    inner = inner * torch.rsqrt(inner.square().mean(-1, keepdim=True) + a.eps)
    if a.cast == "before_weight":
        inner = inner.to(x.dtype)
    if weight is not None:
        w = (1.0 + upcast(weight)) if a.weight == "one_plus" else weight
        inner = inner * (w if a.cast == "before_weight" else upcast(w)).unflatten(-1, (a.groups, a.dim))
    if bias is not None:
        inner = inner + bias.unflatten(-1, (a.groups, a.dim))
    if z is not None and a.gate_order == "after_norm":
        inner = upcast(inner) * activation(a.gate, z)
    return inner.to(x.dtype).flatten(-3)
