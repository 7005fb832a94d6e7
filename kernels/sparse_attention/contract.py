"""What the implementations of `sparse_attention` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

_SCALE = Clause("scale", "attribute", "scale", Between(low=0.0), "scores are scaled, never reversed")
_DTYPE = Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math")

TORCH = Contract(
    "sparse_attention",
    "torch",
    (Clause("memory", "attribute", "memory", OneOf(("kv", "latent")), "what it can expand"), _SCALE, _DTYPE),
)

TORCH_ABSORBED = Contract(
    "sparse_attention",
    "torch_absorbed",
    (Clause("memory", "attribute", "memory", OneOf(("latent",)), "only kv_up can be absorbed"), _SCALE, _DTYPE),
)

# Tiles of more channels leave no room on chip for the next one on its way: 512 of a latent, 256 of keys and values.
TRITON = Contract(
    "sparse_attention",
    "triton",
    (
        *ON_GPU,
        Clause("capability", "device", "capability", Between(low=9.0), "tiles fill the shared memory of Hopper"),
        Clause("dtype", "dtype", "activation", OneOf(("bfloat16", "float16", "float32")), "what the kernels multiply"),
        Clause("weight", "dtype", "weight", OneOf(("bfloat16", "float16", "float32")), "what kv_up is multiplied in"),
        Clause("page", "shape", "page_tokens", OneOf((64,)), "the page that addresses are computed for"),
        Clause("memory", "attribute", "memory", OneOf(("kv", "latent")), "what it can read"),
        _SCALE,
        Clause("head_dim", "attribute", "head_dim", Between(high=256), "a tile of keys fits on chip"),
        Clause("value_dim", "attribute", "value_dim", Between(high=256), "a tile of values fits on chip"),
        Clause("rank", "attribute", "rank", Between(high=512), "a tile of latents fits on chip"),
        Clause("rope_dim", "attribute", "rope_dim", Between(high=128), "a tile of rope keys fits on chip"),
    ),
)
