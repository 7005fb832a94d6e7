"""The kind `ngram_embedding`: hashed embeddings of the last tokens, added inside the layers."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.ngram_embedding.contract import TORCH
from day0.kernels.ngram_embedding.cost import cost
from day0.kernels.ngram_embedding.schema import STATE, WEIGHTS, NgramEmbeddingAttributes, state, weights

KIND = Kind(
    name="ngram_embedding",
    summary="hashed n-gram embedding, gated by the residual streams and added to them",
    attributes=NgramEmbeddingAttributes,
    methods={"": Method(inputs=("h",), outputs=("h",))},
    weights=weights,
    weights_shown=WEIGHTS,
    state_shown=STATE,
    cost=cost,
    implementations=(Implementation("torch", "day0.kernels.ngram_embedding.reference", TORCH),),
    state=state,
    context=("batch", "memory"),
)
