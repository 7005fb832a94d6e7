"""Gated hyper-connections: streams read through low-rank channel gates, written through scalar ones.

Source: transformers Qwen4ExpTextGatedResidual.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from day0.kernels.common.numerics import upcast
from day0.kernels.residual_mix.schema import ResidualMixAttributes


def normed_streams(a: ResidualMixAttributes, h: Tensor, norm: Tensor) -> Tensor:
    """n = (1 + norm) RMS(h_s) per stream, in float32, back in the dtype of h. h [N, S, H] -> [N, S * H]."""
    inner = upcast(h)
    inner = inner * torch.rsqrt(inner.square().mean(-1, keepdim=True) + a.norm_eps)
    return (inner.flatten(-2) * (1.0 + upcast(norm))).to(h.dtype)


def read(a: ResidualMixAttributes, n: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """x = mean over streams of sigmoid(up silu(down n / S)) * n. n [N, S * H] -> [N, H]."""
    gate = torch.sigmoid(linear(silu(linear(n, down) / a.streams), up))
    streams: Tensor = (gate * n).unflatten(-1, (a.streams, a.width))
    return streams.mean(-2)


def pre(
    a: ResidualMixAttributes,
    h: Tensor,  # [N, S, H]
    *,
    norm: Tensor,  # [S * H], one-plus
    down: Tensor,  # [rank, S * H]
    up: Tensor,  # [S * H, rank]
    inject: Tensor,  # [S, S * H]
) -> tuple[Tensor, Tensor]:  # [N, H], [N, S]
    """The branch input, and per stream how much of the branch output it takes: 2 sigmoid(inject n / S)."""
    n = normed_streams(a, h, norm)
    return read(a, n, down, up), 2.0 * torch.sigmoid(linear(n, inject) / a.streams)


def post(h: Tensor, y: Tensor, mix: Tensor) -> Tensor:
    """h'_s = h_s + mix_s y. h [N, S, H], y [N, H], mix [N, S] -> [N, S, H]."""
    return h + mix.unsqueeze(-1) * y.unsqueeze(-2)


def collapse(a: ResidualMixAttributes, h: Tensor, *, norm: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The stream's end is one more reading: [N, S, H] -> [N, H]. It stands in place of a final norm."""
    return read(a, normed_streams(a, h, norm), down, up)
