"""What the implementations of `index_select` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

TORCH = Contract(
    "index_select",
    "torch",
    (
        Clause("pool", "attribute", "pool", OneOf((1, 2, 4, 8, 16, 32, 64)), "a pool must not cross a page"),
        Clause("budget", "attribute", "budget", Between(low=1), "something must be chosen"),
        Clause("score", "attribute", "score", OneOf(("relu_weighted", "relu_sum")), "scores it can compute"),
        Clause("pooling", "attribute", "pooling", OneOf(("none", "softmax", "mean")), "pools it can make"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)
