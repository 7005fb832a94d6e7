"""The kind `recurrence`: the matrix-state recurrences of linear attention and state space models."""

from day0.kernels.interface.kind import Implementation, Kind, Method
from day0.kernels.recurrence.contract import TORCH, TORCH_CHUNKED, TRITON
from day0.kernels.recurrence.cost import cost
from day0.kernels.recurrence.schema import STATE, WEIGHTS, RecurrenceAttributes, state, weights

KIND = Kind(
    name="recurrence",
    summary="matrix state per head, decayed and written once a token: gated delta rule, KDA, Mamba-2, lightning",
    attributes=RecurrenceAttributes,
    methods={"": Method(inputs=("q", "k", "v"), outputs=("o",), optional_inputs=("decay", "beta"))},
    weights=weights,
    weights_shown=WEIGHTS,
    state_shown=STATE,
    cost=cost,
    implementations=(
        Implementation("torch", "day0.kernels.recurrence.reference", TORCH),
        Implementation("triton", "day0.kernels.recurrence.triton_fused", TRITON),
        Implementation("torch_chunked", "day0.kernels.recurrence.chunked", TORCH_CHUNKED),
    ),
    state=state,
    context=("batch", "memory"),
    fuses_with={"norm": "the gated norm works head by head on the output that the recurrence still holds"},
)
