"""Precision rules every reference shares."""

import torch
from torch import Tensor


def upcast(x: Tensor) -> Tensor:
    """The dtype internal arithmetic runs in: float64 stays, everything else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def activation(name: str, x: Tensor) -> Tensor:
    """Elementwise activation by its name in configs. Raises ValueError on an unknown name."""
    if name == "silu":
        return torch.nn.functional.silu(x)
    if name == "sigmoid":
        return torch.sigmoid(x)
    if name == "relu":
        return torch.relu(x)
    if name == "relu2":
        return torch.relu(x).square()
    if name == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    if name == "none":
        return x
    raise ValueError(f"unknown activation {name!r}")
