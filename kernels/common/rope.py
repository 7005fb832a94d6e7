"""Rotary position embedding (arXiv 2104.09864): frequencies, tables and the rotation."""

import math

import torch
from torch import Tensor

from day0.kernels.common.channel_layout import Layout

# Bound here because an exactness run makes the name torch.float32 mean float64 while it lasts, and frequencies stay
# float32 even then.
_FLOAT32 = torch.float32


def inverse_frequencies(rotary_dim: int, theta: float) -> Tensor:
    """theta^(-2i / rotary_dim) for i = 0 .. rotary_dim/2 - 1: [rotary_dim / 2] float32, on the CPU.

    Always float32, on the CPU: the model families make this table so whatever their dtype, and it is part of what
    they compute.
    """
    return 1.0 / _periods(rotary_dim, theta)


def yarn_inverse_frequencies(
    rotary_dim: int,
    theta: float,
    *,
    factor: float,
    original_max_position_embeddings: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> Tensor:
    """YaRN's frequencies (arXiv 2309.00071; transformers `_compute_yarn_parameters`): [rotary_dim / 2] float32.

    A frequency that turns more than `beta_fast` times over the original context stays, one that turns less than
    `beta_slow` times is divided by `factor`, those between are mixed along a linear ramp.
    """
    periods = _periods(rotary_dim, theta)

    def channel(turns: float) -> float:
        length = original_max_position_embeddings / (turns * 2 * math.pi)
        return rotary_dim * math.log(length) / (2 * math.log(theta))

    low, high = channel(beta_fast), channel(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(rotary_dim // 2, dtype=_FLOAT32) - low) / (high - low)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept


def yarn_attention_factor(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """What YaRN multiplies cos and sin by: 0.1 ln(factor) + 1, or the ratio of its two scaled forms if both are set.

    `factor` is at least 1.
    """

    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0

    return growth(mscale) / growth(mscale_all_dim) if mscale and mscale_all_dim else growth(1.0)


def tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency: [N, rotary_dim / 2] each, float64 for `dtype` float64 and float32 else."""
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    angles = positions[:, None] * frequencies.to(positions.device, inner)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Turns each pair (x1, x2) of [..., rotary_dim] by its angle: (x1 cos - x2 sin, x2 cos + x1 sin).

    "half" pairs channel i with i + rotary_dim/2; "interleaved" pairs 2i with 2i + 1; "interleaved_to_half" reads pairs
    as "interleaved" and writes them as "half" (transformers' `apply_rotary_pos_emb_interleave`).
    `cos` and `sin` broadcast against [..., rotary_dim / 2].
    """
    first, second = x.chunk(2, dim=-1) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, dim=-1).flatten(-2) if layout == "interleaved" else torch.cat(turned, dim=-1)


def _periods(rotary_dim: int, theta: float) -> Tensor:
    return theta ** (torch.arange(0, rotary_dim, 2, dtype=_FLOAT32) / rotary_dim)
