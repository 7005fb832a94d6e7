"""The kind `norm`: RMS and layer normalisation, with the output gate that recurrent mixers fuse into it."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.norm.contract import TORCH, TRITON
from day0.kernels.norm.cost import cost
from day0.kernels.norm.schema import WEIGHTS, NormAttributes, weights

KIND = Kind(
    name="norm",
    summary="RMS or layer normalisation over groups of channels, optionally gated",
    attributes=NormAttributes,
    methods={"": Method(inputs=("x",), outputs=("y",), optional_inputs=("gate",))},
    weights=weights,
    weights_shown=WEIGHTS,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.norm.reference", TORCH),
        Implementation("triton", "day0.kernels.norm.triton_fused", TRITON),
    ),
)
