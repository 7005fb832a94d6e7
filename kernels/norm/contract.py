"""What the implementations of `norm` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

TORCH = Contract(
    "norm",
    "torch",
    (
        Clause("dim", "attribute", "dim", Between(low=1), "a group holds at least one channel"),
        Clause("eps", "attribute", "eps", Between(low=0.0), "eps stands under a square root"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)
