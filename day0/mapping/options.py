"""What a user may ask of a plan."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["float64", "float32", "bfloat16", "float16"]

DTYPE_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class MapOptions:
    """`dtype` None: the checkpoint's, where the device has a rate for it, else float32.

    `memory_fraction`: share of the device's memory that weights, caches and workspace may take together.
    `prefill_tokens`: new tokens in the largest prefill step; `verify_tokens`: per sequence in a verify step.
    """

    dtype: DType | None = None
    memory_fraction: float = 0.9
    prefill_tokens: int = 8192
    verify_tokens: int = 8
