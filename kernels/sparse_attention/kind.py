"""The kind `sparse_attention`: softmax attention to positions chosen per token, with the same memory as `attention`."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.sparse_attention.contract import TORCH, TORCH_ABSORBED, TRITON
from day0.kernels.sparse_attention.cost import cost
from day0.kernels.sparse_attention.schema import STATE, WEIGHTS, SparseAttentionAttributes, components, weights

KIND = Kind(
    name="sparse_attention",
    summary="softmax attention to chosen positions of a paged cache of keys and values (GQA) or latents (MLA)",
    attributes=SparseAttentionAttributes,
    methods={"": Method(inputs=("q", "indices", "k_or_latent"), outputs=("y",), optional_inputs=("v_or_rope_key",))},
    weights=weights,
    weights_shown=WEIGHTS,
    state_shown=STATE,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.sparse_attention.reference", TORCH),
        Implementation("torch_absorbed", "day0.kernels.sparse_attention.absorbed", TORCH_ABSORBED),
        Implementation("triton", "day0.kernels.sparse_attention.triton_fused", TRITON),
    ),
    state=components,
    context=("batch", "memory"),
)
