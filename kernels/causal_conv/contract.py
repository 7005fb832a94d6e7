"""What the implementations of `causal_conv` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

TORCH = Contract(
    "causal_conv",
    "torch",
    (
        Clause("channels", "attribute", "channels", Between(low=1), "a convolution needs channels"),
        Clause("kernel_size", "attribute", "kernel_size", Between(low=2), "one tap is a product and has no window"),
        Clause("dilation", "attribute", "dilation", Between(low=1), "taps stand at different tokens"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)

TRITON = Contract(
    "causal_conv",
    "triton",
    (
        *ON_GPU,
        Clause("dtype", "dtype", "activation", OneOf(("bfloat16", "float16", "float32")), "float32 arithmetic inside"),
        Clause("channels", "attribute", "channels", Between(low=1), "a convolution needs channels"),
        Clause("kernel_size", "attribute", "kernel_size", Between(2, 8), "a program reads its taps one by one"),
        Clause("dilation", "attribute", "dilation", Between(1, 8), "a program holds the whole window"),
    ),
)
