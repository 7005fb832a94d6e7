"""What the implementations of `causal_conv` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

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
