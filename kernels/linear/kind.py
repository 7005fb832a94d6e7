"""The kind `linear`: a matrix product, whose result may be handed on in parts."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.linear.contract import TORCH, TRITON
from day0.kernels.linear.cost import cost
from day0.kernels.linear.schema import WEIGHTS, LinearAttributes, outputs, weights

KIND = Kind(
    name="linear",
    summary="matrix product y = x W^T + b, optionally split, scaled or soft-capped",
    attributes=LinearAttributes,
    methods={"": Method(inputs=("x",), outputs=outputs)},
    weights=weights,
    weights_shown=WEIGHTS,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.linear.reference", TORCH),
        Implementation("triton", "day0.kernels.linear.triton_fused", TRITON),
    ),
)
