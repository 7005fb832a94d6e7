"""What every Triton launcher needs: refusals before the launch, and whether kernels run compiled or interpreted."""

import os

import torch
from torch import Tensor

from day0.errors import Day0Error

# Triton reads this when a kernel is decorated, so it has to be set before the kernels are imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Whether kernels become PTX: instructions may then be named.
PTX = not INTERPRETED and torch.version.cuda is not None


class ContractError(Day0Error, ValueError):
    """A launch outside a kernel's contract; nothing has run."""


def require(holds: bool, kernel: str, what: str) -> None:
    """Raises ContractError saying that `kernel` needs `what`."""
    if not holds:
        raise ContractError(f"{kernel} needs {what}", hint="take the implementation `torch`, or other sizes")


def require_tensor(
    kernel: str, name: str, x: Tensor, shape: tuple[int | None, ...], dtypes: tuple[object, ...] = ()
) -> None:
    """Raises ContractError unless `x` has this shape (None: any extent), one of `dtypes` if any, and unit last stride.

    Launchers pass strides of all other axes on, so views into wider rows are fine.
    """
    fits = x.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, x.shape, strict=False))
    wanted = ", ".join("*" if n is None else str(n) for n in shape)
    require(fits, kernel, f"{name} of shape [{wanted}], not {list(x.shape)}")
    require(not dtypes or x.dtype in dtypes, kernel, f"{name} in {', '.join(map(str, dtypes))}, not {x.dtype}")
    require(x.shape[-1] == 1 or x.stride(-1) == 1, kernel, f"{name} with its last axis contiguous")


def next_power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least n and 1 (extent of a Triton block)."""
    return 1 << max(n - 1, 0).bit_length()


def early(start: bool) -> dict[str, bool]:
    """Launch options with which a kernel may start before the one before it is over (programmatic dependent launch)."""
    return {"launch_pdl": True} if start and PTX else {}
