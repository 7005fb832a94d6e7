"""The kind `residual_mix`: how branch outputs enter the residual stream."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.residual_mix.contract import TORCH, TRITON
from day0.kernels.residual_mix.cost import cost
from day0.kernels.residual_mix.schema import WEIGHTS, ResidualMixAttributes, outputs, weights

KIND = Kind(
    name="residual_mix",
    summary="residual stream: plain sum, hyper-connections or Attention Residuals",
    attributes=ResidualMixAttributes,
    methods={
        "": Method(inputs=("h", "y"), outputs=outputs("", ("h",))),
        "expand": Method(inputs=("x",), outputs=outputs("expand", ("h",))),
        "pre": Method(inputs=("h",), outputs=outputs("pre", ("x", "mix"))),
        "post": Method(inputs=("h", "y", "mix"), outputs=outputs("post", ("h",))),
        "collapse": Method(inputs=("h",), outputs=outputs("collapse", ("x",))),
    },
    weights=weights,
    weights_shown=WEIGHTS,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.residual_mix.reference", TORCH),
        Implementation("triton", "day0.kernels.residual_mix.triton_fused", TRITON),
    ),
    fuses_with={"norm": "the branch input can be normalised as the streams are read"},
)
