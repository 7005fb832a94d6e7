"""What the implementations of `linear` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

TORCH = Contract(
    "linear",
    "torch",
    (
        Clause("in_features", "attribute", "in_features", Between(low=1), "a product needs columns"),
        Clause("out_features", "attribute", "out_features", Between(low=1), "a product needs rows"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)
