"""The kind `embedding`: token ids to vectors."""

from day0.kernels.embedding.contract import TORCH
from day0.kernels.embedding.cost import cost
from day0.kernels.embedding.schema import WEIGHTS, EmbeddingAttributes, weights
from day0.kernels.interface.kind import Implementation, Kind, Method

KIND = Kind(
    name="embedding",
    summary="token embedding: one row of a table per token id",
    attributes=EmbeddingAttributes,
    methods={"": Method(inputs=("token_ids",), outputs=("x",))},
    weights=weights,
    weights_shown=WEIGHTS,
    cost=cost,
    implementations=(Implementation("torch", "day0.kernels.embedding.reference", TORCH),),
)
