"""What the implementations of `sparse_attention` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf

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
