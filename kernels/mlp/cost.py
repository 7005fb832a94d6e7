"""Cost of a feed-forward network: its matrix products; each weight is read once a step."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.mlp.schema import MlpAttributes


def cost(a: MlpAttributes, work: Work) -> Cost:
    owned = (3 if a.gated else 2) * a.hidden * a.width
    return Cost(
        flops=2.0 * work.tokens * owned,
        bytes_read=owned * work.weight_bytes + work.tokens * a.width * work.activation_bytes,
        bytes_written=work.tokens * a.width * work.activation_bytes,
    )
