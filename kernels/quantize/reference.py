"""Quantisation with a scale for each group of channels, in plain PyTorch: as values in 8 bits and scales.

Values are e4m3 (1 sign, 4 exponent, 3 mantissa bits, up to 448; OCP 8-bit floating point, revision 1.0) or int8. Scales
are powers of two, kept as float32's exponent in a byte, for groups of 32 channels (index queries and keys), or float32
numbers for tiles of 128 (keys, values and latents of attention): the layouts that the readers take.
"""

import torch
from torch import Tensor

GROUP = 32  # channels that share an exponent
TILE = 128  # channels that share a float32 scale
LARGEST = {"e4m3": 448.0, "int8": 127.0}
SMALLEST_SCALE = 2.0**-126  # the smallest normal float32, so that nothing is divided by a subnormal number


def quantize_groups(x: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """x [N, C] as values [N, C] uint8 (the bits of e4m3) or int8, and exponents [N, C / 32] uint8.

    A number is value * 2^(exponent - 127), with the smallest exponent that holds the group's largest number. A group
    with NaN or infinity has exponent 255, which readers take as infinity, and zeros: all of it reads as NaN.
    """
    groups = x.float().unflatten(-1, (-1, GROUP))
    mantissa, exponent = torch.frexp(groups.abs().amax(-1, keepdim=True) / LARGEST[form])  # mantissa in [0.5, 1)
    exponent = exponent - (mantissa == 0.5).int()
    exponent = torch.where(mantissa == 0, 0, exponent + 127).clamp(1, 254)
    finite = groups.isfinite().all(-1, keepdim=True)
    # By a power of two: exact.
    scaled = groups.double() * torch.exp2(127.0 - exponent.double())
    values = _rounded(torch.where(finite, scaled, 0.0).float(), form)
    packed = values.view(torch.uint8) if form == "e4m3" else values
    return packed.flatten(-2), torch.where(finite, exponent, 255).squeeze(-1).to(torch.uint8)


def quantize_tiles(x: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """x [N, C] as values [N, C] float8_e4m3fn or int8, and scales [N, C / 128] float32.

    A number is value * scale; the largest of a tile is the format's largest. A tile with NaN or infinity has the scale
    NaN and zeros: all of it reads as NaN.
    """
    tiles = x.float().unflatten(-1, (-1, TILE))
    scale = (tiles.abs().amax(-1, keepdim=True) / LARGEST[form]).clamp(min=SMALLEST_SCALE)
    finite = tiles.isfinite().all(-1, keepdim=True)
    values = _rounded(torch.where(finite, tiles / scale, 0.0), form)
    return values.flatten(-2), torch.where(finite, scale, torch.nan).squeeze(-1)


def dequantize(values: Tensor, scales: Tensor) -> Tensor:
    """What the values [N, C] of either function stand for, in float32."""
    real = values.view(torch.float8_e4m3fn) if values.dtype == torch.uint8 else values
    if scales.dtype == torch.uint8:
        scales = (scales.int() << 23).view(torch.float32)
    groups: Tensor = real.float().unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]
    return groups.flatten(-2)


def _rounded(x: Tensor, form: str) -> Tensor:
    """Within the format's range: to the nearest, and of two equally near to the even one. Zero has no sign."""
    if form == "int8":
        return x.round().to(torch.int8)
    bits = x.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(bits == 0x80, 0, bits).view(torch.float8_e4m3fn)
