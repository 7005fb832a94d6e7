"""Manifold-constrained hyper-connections: streams mixed by a doubly stochastic matrix.

Source: mHC (arXiv 2512.24880), as in transformers Glm5NextTextHyperConnection. All gates are computed in float32.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from day0.kernels.common.numerics import upcast
from day0.kernels.residual_mix.schema import ResidualMixAttributes


def pre(
    a: ResidualMixAttributes,
    h: Tensor,  # [N, S, H]
    *,
    fn: Tensor,  # [(2 + S) * S, S * H]: rows for pre, post, mixing matrix
    base: Tensor,  # [(2 + S) * S]
    scale: Tensor,  # [3]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # [N, H], ([N, S], [N, S, S])
    """x = sum_i p_i h_i with u = fn RMS(vec h), p = sigmoid(s_0 u + b) + eps; and post gates and mixing matrix.

    Post gates: 2 sigmoid(s_1 u + b). Mixing matrix: Sinkhorn of softmax over its last axis of s_2 u + b.
    """
    s = a.streams
    flat = upcast(h).flatten(-2)
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + a.norm_eps)
    u_pre, u_post, u_mix = linear(flat, upcast(fn)).split([s, s, s * s], dim=-1)
    b_pre, b_post, b_mix = upcast(base).split([s, s, s * s])
    s_pre, s_post, s_mix = upcast(scale).unbind()
    into = torch.sigmoid(u_pre * s_pre + b_pre) + a.mix_eps
    out = 2.0 * torch.sigmoid(u_post * s_post + b_post)
    mixing = sinkhorn((u_mix * s_mix + b_mix).unflatten(-1, (s, s)), a.sinkhorn_iterations, a.mix_eps)
    x = (into.unsqueeze(-1) * upcast(h)).sum(-2).to(h.dtype)
    return x, (out, mixing)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """An almost doubly stochastic matrix: softmax over rows, then columns normalised, then (rows, columns) again.

    logits: [..., S, S] float. Ends on a column normalisation; eps is added to the softmax and to every divisor.
    """
    m = torch.softmax(logits, dim=-1) + eps
    m = m / (m.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        m = m / (m.sum(-1, keepdim=True) + eps)
        m = m / (m.sum(-2, keepdim=True) + eps)
    return m


def post(h: Tensor, y: Tensor, mix: tuple[Tensor, ...]) -> Tensor:
    """h'_i = out_i y + sum_j C_ji h_j: the mixing matrix works transposed. h [N, S, H], y [N, H] -> [N, S, H]."""
    out, mixing = mix
    return (out.unsqueeze(-1) * upcast(y).unsqueeze(-2) + mixing.mT @ upcast(h)).to(h.dtype)
