"""What the implementations of `gate` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

TORCH = Contract(
    "gate",
    "torch",
    (
        Clause("channels", "attribute", "channels", Between(low=1), "a gate needs channels"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)
