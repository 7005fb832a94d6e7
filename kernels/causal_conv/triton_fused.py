"""The implementation "triton": the reference's function in one launch."""

import torch
from torch import Tensor

from day0.kernels.causal_conv.schema import CausalConvAttributes
from day0.kernels.causal_conv.triton_conv import launch
from day0.kernels.interface.batch import Batch


def causal_conv(
    a: CausalConvAttributes,
    x: Tensor,  # [N, channels]
    *,
    weight: Tensor,  # [channels, kernel_size]
    bias: Tensor | None = None,  # [channels]
    batch: Batch,
    window: Tensor,  # [slots, channels, window], updated in place
) -> Tensor | tuple[Tensor, ...]:  # [N, channels], or its parts
    """As the reference's `causal_conv`. Raises ContractError on what the kernel cannot take."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    launch(a, x, weight=weight, bias=bias, batch=batch, window=window, out=y)
    return torch.split(y, list(a.split), dim=1) if a.split else y
