"""Cost of a causal short convolution: one pass over its input, and the window of every sequence."""

from day0.kernels.causal_conv.schema import CausalConvAttributes
from day0.kernels.interface.kind import Cost, Work


def cost(a: CausalConvAttributes, work: Work) -> Cost:
    """A multiply and an add per tap, four operations for silu. A fresh sequence reads no window."""
    per_channel = 2 * a.kernel_size + a.bias + (4 if a.activation == "silu" else 0)
    owned = a.channels * (a.kernel_size + a.bias)
    ports = work.tokens * a.channels * work.activation_bytes
    windows = work.sequences * a.channels * a.window * work.activation_bytes
    return Cost(
        flops=work.tokens * a.channels * per_channel,
        bytes_read=ports + owned * work.weight_bytes + (windows if work.context > 0 else 0),
        bytes_written=ports + windows,
    )
