"""The kind `gate`: a result multiplied by an activated gate, per channel or per head."""

from day0.kernels.gate.contract import TORCH
from day0.kernels.gate.cost import cost
from day0.kernels.gate.schema import GateAttributes
from day0.kernels.interface.kind import Implementation, Kind, Method

KIND = Kind(
    name="gate",
    summary="product with an activated gate, one value per channel or per head",
    attributes=GateAttributes,
    methods={"": Method(inputs=("x", "gate"), outputs=("y",))},
    weights=lambda attributes: {},
    cost=cost,
    implementations=(Implementation("torch", "day0.kernels.gate.reference", TORCH),),
)
