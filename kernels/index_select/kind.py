"""The kind `index_select`: which earlier tokens sparse attention shall read."""

from day0.kernels.index_select.contract import TORCH, TRITON
from day0.kernels.index_select.cost import cost
from day0.kernels.index_select.schema import STATE, WEIGHTS, IndexSelectAttributes, components, dense_limit, weights
from day0.kernels.interface.kind import Implementation, Kind, Method


def switch(a: IndexSelectAttributes) -> str | None:
    limit = dense_limit(a)
    return None if limit is None else f"a query sees at most {limit} tokens"


KIND = Kind(
    name="index_select",
    summary="scores earlier tokens, or pools of them, with small query heads and keeps the best positions",
    attributes=IndexSelectAttributes,
    methods={"": Method(inputs=("q", "k"), outputs=("indices",), optional_inputs=("weights", "pool_gate"))},
    weights=weights,
    weights_shown=WEIGHTS,
    state_shown=STATE,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.index_select.reference", TORCH),
        Implementation("triton", "day0.kernels.index_select.triton_fused", TRITON),
    ),
    state=components,
    context=("batch", "memory"),
    switch=switch,
    chooses=True,
)
