"""What the implementations of `index_select` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

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

TRITON = Contract(
    "index_select",
    "triton",
    (
        *ON_GPU,
        Clause("dim", "attribute", "dim", OneOf((32, 64, 128, 256)), "a key's channels fill one matrix tile"),
        Clause("heads", "attribute", "heads", Between(low=1, high=128), "all heads of a query stand in one tile"),
        Clause("budget", "attribute", "budget", Between(low=1, high=4096), "the chosen share a window with new scores"),
        Clause("pool", "attribute", "pool", OneOf((1, 2, 4, 8, 16, 32, 64)), "a pool must not cross a page"),
        Clause("score", "attribute", "score", OneOf(("relu_weighted", "relu_sum")), "scores it can compute"),
        Clause("pooling", "attribute", "pooling", OneOf(("none", "softmax", "mean")), "pools it can make"),
        Clause("dtype", "dtype", "activation", OneOf(("bfloat16", "float16", "float32")), "float32 sums of products"),
    ),
)
