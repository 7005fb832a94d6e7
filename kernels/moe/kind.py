"""The kind `moe`: router, routed experts and shared expert of a layer."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.moe.contract import TORCH, TRITON
from day0.kernels.moe.cost import cost
from day0.kernels.moe.schema import WEIGHTS, MoeAttributes, weights

KIND = Kind(
    name="moe",
    summary="mixture of experts: top-k routing over gated networks, with an optional shared one",
    attributes=MoeAttributes,
    methods={"": Method(inputs=("x",), outputs=("y",))},
    weights=weights,
    weights_shown=WEIGHTS,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.moe.reference", TORCH),
        Implementation("triton", "day0.kernels.moe.triton_fused", TRITON),
    ),
    chooses=True,
)
