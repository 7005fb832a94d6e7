"""What the implementations of `norm` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

TORCH = Contract(
    "norm",
    "torch",
    (
        Clause("dim", "attribute", "dim", Between(low=1), "a group holds at least one channel"),
        Clause("eps", "attribute", "eps", Between(low=0.0), "eps stands under a square root"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)

TRITON = Contract(
    "norm",
    "triton",
    (
        *ON_GPU,
        Clause("dim", "attribute", "dim", Between(low=1, high=32768), "one program holds a group in registers"),
        Clause("eps", "attribute", "eps", Between(low=0.0), "eps stands under a square root"),
        Clause("dtype", "dtype", "activation", OneOf(("float32", "bfloat16", "float16")), "sums are in float32"),
    ),
)
