"""Plain PyTorch output gate, in float32 inside (float64 for float64 inputs)."""

from torch import Tensor

from day0.kernels.common.numerics import activation, upcast
from day0.kernels.gate.schema import GateAttributes


def gate(
    a: GateAttributes,
    x: Tensor,  # [N, channels]
    gate: Tensor,  # [N, channels], or [N, heads]
) -> Tensor:  # [N, channels]
    """y = x * act(gate), the gate of a head standing for all its channels (the attention output gates of
    transformers' qwen3_next, bailing_hybrid, dots3_note; the shared-expert gate of qwen3_next with one head)."""
    grouped = upcast(x).reshape(-1, a.gate_channels, a.channels // a.gate_channels)
    return (grouped * activation(a.activation, upcast(gate)).unsqueeze(-1)).flatten(1).to(x.dtype)
