"""What the implementations of `moe` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

_SIZES = (
    Clause("width", "attribute", "width", Between(low=1), "a product needs columns"),
    Clause("hidden", "attribute", "hidden", Between(low=1), "a product needs rows"),
    Clause("shared_hidden", "attribute", "shared_hidden", Between(low=0), "0 means no shared expert"),
    Clause("clamp", "attribute", "clamp", Between(low=0.0), "[-clamp, clamp] must not be empty"),
    Clause("renormalise_eps", "attribute", "renormalise_eps", Between(low=0.0), "it keeps a divisor above zero"),
)

TORCH = Contract(
    "moe",
    "torch",
    (
        *_SIZES,
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)

TRITON = Contract(
    "moe",
    "triton",
    (
        *_SIZES,
        *ON_GPU,
        Clause("experts", "attribute", "experts", Between(high=4096), "a token's scores stand in registers"),
        Clause("dtype", "dtype", "activation", OneOf(("float32", "bfloat16", "float16")), "sums are float32"),
    ),
)
