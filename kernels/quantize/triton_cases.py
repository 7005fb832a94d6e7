"""Rows at the edges of quantisation: what is stored must be what the reference stores, bit by bit."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from day0.kernels.common.conformance import Finding, OwnCase
from day0.kernels.quantize.reference import quantize_groups, quantize_tiles
from day0.kernels.quantize.triton_quantize import quantize

FORMS = ("e4m3", "int8")
SCALES = (torch.uint8, torch.float32)


def exact(x: Tensor, form: str, scales: torch.dtype) -> tuple[Tensor, Tensor]:
    """The reference's values and scales on the CPU; scales in this dtype."""
    return (quantize_groups if scales == torch.uint8 else quantize_tiles)(x.cpu(), form)


def differing(ours: Tensor, expected: Tensor) -> int:
    """How many numbers differ, of any dtype; NaN equals NaN."""
    a, b = (t.cpu().view(torch.uint8) if t.element_size() == 1 else t.cpu() for t in (ours, expected))
    same = a == b
    return int((~(same | (a.isnan() & b.isnan()) if a.is_floating_point() else same)).sum())


def plain(g: torch.Generator) -> Tensor:
    """Groups of sizes over the whole range of the input's dtype."""
    sizes = torch.exp2(torch.randint(-12, 13, (5, 12), generator=g))
    return torch.randn(5, 384, generator=g) * sizes.repeat_interleave(32, dim=1)


def halfway(g: torch.Generator) -> Tensor:
    """Numbers half way between neighbours, where the largest makes the scale 1: ties go to the even one."""
    rows = torch.zeros(2, 128)
    rows[:, ::32] = torch.tensor([448.0, 127.0])[:, None]
    rows[0, 1:32] = torch.arange(31) * 0.5**10  # subnormal numbers of e4m3 and halves of their unit
    rows[0, 33:64] = 1.0 + torch.arange(31) / 16
    rows[0, 65:96] = -(256.0 + 16 * torch.arange(31).clamp(max=12))
    rows[1, 1:128] = torch.arange(127) - 63.5
    rows[1, ::32] = 127.0
    return rows


def edges(g: torch.Generator) -> Tensor:
    """Zeros, subnormal numbers, largest numbers just above and below a power of two's reach, NaN and infinities."""
    rows = torch.randn(8, 128, generator=g)
    rows[0], rows[1], rows[2] = 0.0, -0.0, 6e-8
    rows[3, 0], rows[4, 0], rows[5, 0] = 448.0, 449.0, -127.5
    rows[6, 5], rows[6, 40] = float("nan"), float("inf")
    rows[7, 127] = -float("inf")
    return rows


def _wrong(
    name: str, rows: Callable[[torch.Generator], Tensor], dtype: torch.dtype, device: str, seed: int
) -> list[Finding]:
    x = rows(torch.Generator().manual_seed(seed)).to(dtype)
    found = []
    for form in FORMS:
        for scale_dtype in SCALES:
            expected = exact(x, form, scale_dtype)
            ours = [t.to(device, copy=True) for t in expected]
            for t in ours:
                t.view(torch.uint8).fill_(3)
            quantize(x.to(device), *ours)
            for what, a, b in zip(("values", "scales"), ours, expected, strict=True):
                label = f"{what}, {form}, scales in {scale_dtype}"
                found.append(Finding(name, 0, label, float(differing(a, b)), 0.0, 0.0))
    return found


CASES = tuple(OwnCase(rows.__name__, partial(_wrong, rows.__name__, rows)) for rows in (plain, halfway, edges))
