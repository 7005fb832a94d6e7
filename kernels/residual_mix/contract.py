"""What the implementations of `residual_mix` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

TORCH = Contract(
    "residual_mix",
    "torch",
    (
        Clause("width", "attribute", "width", Between(low=1), "a vector holds at least one channel"),
        Clause("mix_eps", "attribute", "mix_eps", Between(low=0.0), "it keeps the Sinkhorn divisors above zero"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)
