"""The kind `mlp`: the dense feed-forward network of a layer."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.mlp.contract import TORCH, TRITON
from day0.kernels.mlp.cost import cost
from day0.kernels.mlp.schema import WEIGHTS, MlpAttributes, weights

KIND = Kind(
    name="mlp",
    summary="feed-forward network, gated or not",
    attributes=MlpAttributes,
    methods={"": Method(inputs=("x",), outputs=("y",))},
    weights=weights,
    weights_shown=WEIGHTS,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.mlp.reference", TORCH),
        Implementation("triton", "day0.kernels.mlp.triton_fused", TRITON),
    ),
)
