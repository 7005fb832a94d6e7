"""Plain PyTorch rotary position embedding."""

import torch
from torch import Tensor

from day0.kernels.common.rope import (
    inverse_frequencies,
    rotate,
    tables,
    yarn_attention_factor,
    yarn_inverse_frequencies,
)
from day0.kernels.interface.batch import Batch
from day0.kernels.rotary.schema import RotaryAttributes


def rotary(
    a: RotaryAttributes,
    x: Tensor,  # [N, heads * head_dim], any number of heads
    *,
    batch: Batch,
) -> Tensor:  # like x
    """Rotates each token's slice of channels by its position in the sequence (arXiv 2104.09864).

    The angles are float32 (float64 for float64 `x`) over frequencies that are always made in float32.
    """
    cos, sin = tables(batch.positions, frequencies(a), x.dtype)
    factor = attention_factor(a)
    cos, sin = (factor * cos)[:, None], (factor * sin)[:, None]
    if not a.float32_tables:
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    heads = x.unflatten(-1, (-1, a.head_dim))
    before, turning, after = heads.split((a.offset, a.rotary_dim, a.head_dim - a.offset - a.rotary_dim), dim=-1)
    turned = rotate(turning, cos, sin, a.layout).to(x.dtype)
    return torch.cat((before, turned, after), dim=-1).flatten(-2)


def frequencies(a: RotaryAttributes) -> Tensor:
    """Angle per position of each channel pair: [rotary_dim / 2] float32."""
    if a.scaling == "none":
        return inverse_frequencies(a.rotary_dim, a.theta)
    return yarn_inverse_frequencies(
        a.rotary_dim,
        a.theta,
        factor=a.factor,
        original_max_position_embeddings=a.original_max_position_embeddings,
        beta_fast=a.beta_fast,
        beta_slow=a.beta_slow,
        truncate=a.truncate,
    )


def attention_factor(a: RotaryAttributes) -> float:
    """What cos and sin are multiplied by."""
    if a.attention_factor is not None:
        return a.attention_factor
    return yarn_attention_factor(a.factor, a.mscale, a.mscale_all_dim) if a.scaling == "yarn" else 1.0
