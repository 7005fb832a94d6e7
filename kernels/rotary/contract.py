"""What the implementations of `rotary` accept."""

from day0.artifacts.contract import Between, Clause, Contract, MultipleOf, OneOf
from day0.kernels.common.triton_contract import ON_GPU

TORCH = Contract(
    "rotary",
    "torch",
    (
        Clause("rotary_dim", "attribute", "rotary_dim", MultipleOf(2), "channels are rotated in pairs"),
        Clause("offset", "attribute", "offset", Between(low=0), "the slice starts inside the head"),
        Clause("scaling", "attribute", "scaling", OneOf(("none", "yarn")), "frequencies it can make"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)

TRITON = Contract(
    "rotary",
    "triton",
    (
        *ON_GPU,
        Clause("head_dim", "attribute", "head_dim", Between(low=2, high=8192), "one program holds a head"),
        Clause("rotary_dim", "attribute", "rotary_dim", MultipleOf(2), "channels are rotated in pairs"),
        Clause("offset", "attribute", "offset", Between(low=0), "the slice starts inside the head"),
        Clause("scaling", "attribute", "scaling", OneOf(("none", "yarn")), "frequencies it can make"),
        Clause("dtype", "dtype", "activation", OneOf(("float32", "bfloat16", "float16")), "angles are float32"),
    ),
)
