"""The kind `attention`: causal softmax attention with its paged cache of keys and values, or of latents."""

from day0.kernels.attention.contract import TORCH, TORCH_ABSORBED, TRITON
from day0.kernels.attention.cost import cost
from day0.kernels.attention.schema import STATE, WEIGHTS, AttentionAttributes, components, weights
from day0.kernels.interface.kind import Implementation, Kind, Method

KIND = Kind(
    name="attention",
    summary="causal softmax attention over a paged cache of keys and values (GQA) or latents (MLA)",
    attributes=AttentionAttributes,
    methods={"": Method(inputs=("q", "k_or_latent"), outputs=("y",), optional_inputs=("v_or_rope_key",))},
    weights=weights,
    weights_shown=WEIGHTS,
    state_shown=STATE,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.attention.reference", TORCH),
        Implementation("torch_absorbed", "day0.kernels.attention.absorbed", TORCH_ABSORBED),
        Implementation("triton", "day0.kernels.attention.triton_fused", TRITON),
    ),
    state=components,
    context=("batch", "memory"),
)
