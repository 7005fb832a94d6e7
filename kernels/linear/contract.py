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

# Rows of x for which the packed product was faster than cuBLAS in the same run (docs/kernels.md, one H200: at 1 and 8
# tokens of both shapes, not at 64). A step has sequences times tokens per sequence, and how many sequences will run is
# nothing that a plan knows: the implementation decides by the shape of x, and takes PyTorch's product of more rows.
FEW_ROWS = 8

TRITON = Contract(
    "linear",
    "triton",
    (
        *ON_GPU,
        Clause("phase", "phase", "phase", OneOf(("decode", "verify")), "it pays only where a step brings few tokens"),
        Clause(
            "tokens",
            "shape",
            "tokens_per_sequence",
            Between(high=FEW_ROWS),
            f"of more than {FEW_ROWS} tokens a step the product is PyTorch's",
        ),
        Clause("in_features", "attribute", "in_features", Between(low=1), "a product needs columns"),
        Clause("out_features", "attribute", "out_features", Between(low=1), "a product needs rows"),
        Clause("softcap", "attribute", "softcap", OneOf((0.0,)), "the product ends without a cap"),
        Clause("float32", "attribute", "float32", OneOf((False,)), "tensor cores take 16-bit numbers"),
        Clause("dtype", "dtype", "activation", OneOf(("bfloat16", "float16")), "tensor cores take 16-bit numbers"),
    ),
)
