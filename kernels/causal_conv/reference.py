"""Plain PyTorch causal short convolution, in float32 inside (float64 for float64 inputs)."""

import torch
from torch import Tensor

from day0.kernels.causal_conv.schema import CausalConvAttributes
from day0.kernels.common.numerics import activation, upcast
from day0.kernels.interface.batch import Batch


def causal_conv(
    a: CausalConvAttributes,
    x: Tensor,  # [N, channels]
    *,
    weight: Tensor,  # [channels, kernel_size], the last column meets the newest token
    bias: Tensor | None = None,  # [channels]
    batch: Batch,
    window: Tensor,  # [slots, channels, window]: the last inputs of each sequence, oldest first; updated in place
) -> Tensor | tuple[Tensor, ...]:  # [N, channels], or its parts
    """y_t = act(b + sum_j w_j x_{t - (K-1-j) * dilation}) per channel; x is zero before the sequence begins.

    The short convolution of H3, Mamba and the gated delta families (`causal_conv1d` in their transformers modules).
    """
    taps = upcast(weight)
    y = torch.empty_like(x)
    for sequence, (start, end, context) in enumerate(batch.spans()):
        slot = batch.slots[sequence]
        before = window[slot].mT.to(x.dtype) if context > 0 else x.new_zeros(a.window, a.channels)
        inputs = torch.cat((before, x[start:end]))
        length = end - start
        total = torch.zeros_like(x[start:end], dtype=taps.dtype) if bias is None else upcast(bias)
        for j in range(a.kernel_size):
            total = total + taps[:, j] * inputs[j * a.dilation : j * a.dilation + length]
        y[start:end] = activation(a.activation, total)
        window[slot] = inputs[length:].mT
    return torch.split(y, list(a.split), dim=1) if a.split else y
