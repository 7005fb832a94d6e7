"""What the implementations of `recurrence` accept."""

from day0.artifacts.contract import Between, Clause, Contract, OneOf
from day0.kernels.common.triton_contract import ON_GPU

_ALGEBRA = (
    Clause("key_dim", "attribute", "key_dim", Between(low=1), "a state needs rows"),
    Clause("value_dim", "attribute", "value_dim", Between(low=1), "a state needs columns"),
    Clause("lower_bound", "attribute", "lower_bound", Between(high=0.0), "a positive log decay lets the state grow"),
    Clause("time_step_min", "attribute", "time_step_min", Between(low=0.0), "time runs forward"),
    Clause("qk_norm_eps", "attribute", "qk_norm_eps", Between(low=0.0), "eps stands under a square root"),
)
_FLOAT_MATH = Clause("dtype", "dtype", "activation", OneOf(("float64", "float32", "bfloat16", "float16")), "float math")

TORCH = Contract("recurrence", "torch", (*_ALGEBRA, _FLOAT_MATH))

TORCH_CHUNKED = Contract(
    "recurrence",
    "torch_chunked",
    (
        *_ALGEBRA,
        _FLOAT_MATH,
        Clause("phase", "phase", "phase", OneOf(("prefill",)), "blocks pay only when a step brings many tokens"),
    ),
)

TRITON = Contract(
    "recurrence",
    "triton",
    (
        *ON_GPU,
        Clause("dtype", "dtype", "activation", OneOf(("bfloat16", "float16", "float32")), "float32 arithmetic inside"),
        Clause("key_dim", "attribute", "key_dim", Between(1, 256), "a tile of the state stays in registers"),
        Clause("value_dim", "attribute", "value_dim", Between(1, 256), "a tile of the state stays in registers"),
        *_ALGEBRA[2:],
    ),
)
