"""Cost of a matrix product: the weight is read once a step."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.linear.schema import LinearAttributes


def cost(a: LinearAttributes, work: Work) -> Cost:
    owned = a.out_features * (a.in_features + a.bias)
    return Cost(
        flops=2.0 * work.tokens * a.in_features * a.out_features,
        bytes_read=owned * work.weight_bytes + work.tokens * a.in_features * work.activation_bytes,
        bytes_written=work.tokens * a.out_features * work.activation_bytes,
    )
