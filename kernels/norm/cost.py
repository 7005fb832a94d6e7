"""Cost of a normalisation: one pass over its inputs."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.norm.schema import NormAttributes


def cost(a: NormAttributes, work: Work) -> Cost:
    """Counts one vector of groups * dim per token; an operator applied to several heads says so in `groups`."""
    width = a.groups * a.dim
    ports = 2 if a.gate != "none" else 1
    owned = (a.weight != "none") + a.bias
    return Cost(
        flops=work.tokens * width * (4 + 5 * (ports - 1)),
        bytes_read=work.tokens * width * ports * work.activation_bytes + owned * width * work.weight_bytes,
        bytes_written=work.tokens * width * work.activation_bytes,
    )
