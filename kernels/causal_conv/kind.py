"""The kind `causal_conv`: the depthwise short convolution in front of recurrent mixers."""

from day0.kernels.causal_conv.contract import TORCH, TRITON
from day0.kernels.causal_conv.cost import cost
from day0.kernels.causal_conv.schema import STATE, WEIGHTS, CausalConvAttributes, outputs, state, weights
from day0.kernels.interface.kind import Implementation, Kind, Method

KIND = Kind(
    name="causal_conv",
    summary="depthwise causal short convolution with a window state, optionally activated and split",
    attributes=CausalConvAttributes,
    methods={"": Method(inputs=("x",), outputs=outputs)},
    weights=weights,
    weights_shown=WEIGHTS,
    state_shown=STATE,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.causal_conv.reference", TORCH),
        Implementation("triton", "day0.kernels.causal_conv.triton_fused", TRITON),
    ),
    state=state,
    context=("batch", "memory"),
    fuses_with={"recurrence": "the recurrence can convolve its queries, keys and values as it loads them"},
)
