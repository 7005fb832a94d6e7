"""The kind `rotary`: rotary position embedding, with no weight and no state."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.rotary.contract import TORCH, TRITON
from day0.kernels.rotary.cost import cost
from day0.kernels.rotary.schema import RotaryAttributes

KIND = Kind(
    name="rotary",
    summary="rotary position embedding of a slice of each head's channels",
    attributes=RotaryAttributes,
    methods={"": Method(inputs=("x",), outputs=("y",))},
    weights=lambda attributes: {},
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.rotary.reference", TORCH),
        Implementation("triton", "day0.kernels.rotary.triton_fused", TRITON),
    ),
    context=("batch",),
)
