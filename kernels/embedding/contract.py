"""What the implementations of `embedding` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

TORCH = Contract(
    "embedding",
    "torch",
    (
        Clause("vocab_size", "attribute", "vocab_size", Between(low=1), "a table holds at least one row"),
        Clause("width", "attribute", "width", Between(low=1), "a row holds at least one channel"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)
