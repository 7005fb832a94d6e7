"""What the implementations of `residual_mix` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

TORCH = Contract(
    "residual_mix",
    "torch",
    (
        Clause("width", "attribute", "width", Between(low=1), "a vector holds at least one channel"),
        Clause("mix_eps", "attribute", "mix_eps", Between(low=0.0), "it keeps the Sinkhorn divisors above zero"),
        Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math"),
    ),
)

TRITON = Contract(
    "residual_mix",
    "triton",
    (
        *ON_GPU,
        Clause("width", "attribute", "width", Between(low=1, high=16384), "one program holds a source in registers"),
        Clause("mix_eps", "attribute", "mix_eps", Between(low=0.0), "it keeps the Sinkhorn divisors above zero"),
        Clause("streams", "attribute", "streams", Between(low=0, high=8), "the mixing of the streams is unrolled"),
        Clause("rank", "attribute", "rank", Between(low=0, high=256), "a tile holds the whole bottleneck"),
        Clause("sources", "attribute", "sources", Between(low=0, high=128), "one program keeps all scores"),
        Clause("dtype", "dtype", "activation", OneOf(("float32", "bfloat16", "float16")), "sums are in float32"),
    ),
)
