"""What the implementations of `ngram_embedding` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

TORCH = Contract(
    "ngram_embedding",
    "torch",
    (
        Clause("width", "attribute", "width", Between(low=1), "a stream holds at least one channel"),
        Clause("streams", "attribute", "streams", Between(low=1), "the result is added to at least one stream"),
        Clause("vocab_size", "attribute", "vocab_size", Between(low=1), "it divides the range of the multipliers"),
        Clause("table_base", "attribute", "table_base", Between(low=1), "table sizes are the primes from here on"),
        Clause("table_divisor", "attribute", "table_divisor", Between(low=1), "rows are padded to a multiple of it"),
        Clause("layer_index", "attribute", "layer_index", Between(low=0), "layers are counted from 0"),
        Clause("norm_eps", "attribute", "norm_eps", Between(low=0.0), "eps stands under a square root"),
        Clause("conv_kernel", "attribute", "conv_kernel", Between(low=1), "a convolution has at least one tap"),
        Clause("conv_dilation", "attribute", "conv_dilation", Between(low=1), "taps stand at distinct tokens"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)
