"""What the implementations of `linear` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

TORCH = Contract(
    "linear",
    "torch",
    (
        Clause("in_features", "attribute", "in_features", Between(low=1), "a product needs columns"),
        Clause("out_features", "attribute", "out_features", Between(low=1), "a product needs rows"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)

TRITON = Contract(
    "linear",
    "triton",
    (
        *ON_GPU,
        Clause("phase", "phase", "phase", OneOf(("decode", "verify")), "it pays only where a step brings few tokens"),
        Clause("in_features", "attribute", "in_features", Between(low=1), "a product needs columns"),
        Clause("out_features", "attribute", "out_features", Between(low=1), "a product needs rows"),
        Clause("softcap", "attribute", "softcap", OneOf((0.0,)), "the product ends without a cap"),
        Clause("float32", "attribute", "float32", OneOf((False,)), "tensor cores take 16-bit numbers"),
        Clause("dtype", "dtype", "activation", OneOf(("bfloat16", "float16")), "tensor cores take 16-bit numbers"),
    ),
)
