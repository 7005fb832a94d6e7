"""Rotary position embedding on the fused Triton kernel; the function of the reference."""

import torch
from torch import Tensor

from day0.kernels.interface.batch import Batch
from day0.kernels.rotary.schema import RotaryAttributes
from day0.kernels.rotary.triton_rotary import device_frequencies, turn


def rotary(
    a: RotaryAttributes,
    x: Tensor,  # [N, heads * head_dim], any number of heads
    *,
    batch: Batch,
) -> Tensor:  # like x
    """As the reference: each token's slice of channels turned by its position."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    turn(a, x, batch.positions, device_frequencies(a, x.device), out=out)
    return out
