"""Honest float64: a reference whose `.float()` and `torch.float32` mean float64 while it runs.

Modeling files cast to float32 by name inside norms, softmax and recurrences; in a float64 model each such cast would
silently truncate. While `float64_arithmetic` is active those names mean float64. RoPE frequencies stay the
float32-rounded numbers of the float32 model, because they are made before the model is converted: they are part of
what the model computes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from day0.reference.load import load_reference
from day0.repo.model_repo import ModelRepo


@contextmanager
def float64_arithmetic() -> Iterator[None]:
    """Within it, Python code that says float32 computes in float64.

    Process-wide, so no other thread may compute meanwhile. It reaches names looked up while it is active. What it does
    not reach stays float32: the default dtype, in which tables made on the fly are part of what the model computes, as
    RoPE frequencies are, and a float32 bound earlier (a default argument), which is a family's `float64_leak`.
    """
    names = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = names  # type: ignore[method-assign]


def loaded_in_float64(repo: ModelRepo, *, trust_remote_code: bool = False, layers: int | None = None) -> Any:
    """The reference in float64, to be run inside `float64_arithmetic`.

    Built in float32, as what it computes when it is made (RoPE frequencies) belongs to the float32 model; a checkpoint
    that stores float64 is loaded as such, so that its weights are not rounded.
    """
    stored = torch.float64 if any(t.dtype == "F64" for t in repo.tensors.values()) else torch.float32
    return load_reference(repo, dtype=stored, trust_remote_code=trust_remote_code, layers=layers).double()
