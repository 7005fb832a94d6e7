"""Cost of a gate: one pass over its inputs."""

from day0.kernels.gate.schema import GateAttributes
from day0.kernels.interface.kind import Cost, Work

# exp, add, divide; silu multiplies once more; gelu_tanh: a cubic inside, tanh as four, and the outer product.
OPERATIONS = {"none": 0, "sigmoid": 3, "silu": 4, "gelu_tanh": 11}


def cost(a: GateAttributes, work: Work) -> Cost:
    return Cost(
        flops=work.tokens * (a.channels + a.gate_channels * OPERATIONS[a.activation]),
        bytes_read=work.tokens * (a.channels + a.gate_channels) * work.activation_bytes,
        bytes_written=work.tokens * a.channels * work.activation_bytes,
    )
