"""What the implementations of `mlp` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

TORCH = Contract(
    "mlp",
    "torch",
    (
        Clause("width", "attribute", "width", Between(low=1), "a product needs columns"),
        Clause("hidden", "attribute", "hidden", Between(low=1), "a product needs rows"),
        Clause("clamp", "attribute", "clamp", Between(low=0.0), "[-clamp, clamp] must not be empty"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)

TRITON = Contract(
    "mlp",
    "triton",
    (
        *ON_GPU,
        Clause("width", "attribute", "width", Between(low=1), "a product needs columns"),
        Clause("hidden", "attribute", "hidden", Between(low=1), "a product needs rows"),
        Clause("clamp", "attribute", "clamp", Between(low=0.0), "[-clamp, clamp] must not be empty"),
        Clause("dtype", "dtype", "activation", OneOf(("float32", "bfloat16", "float16")), "it activates in float32"),
    ),
)
