"""Attention Residuals: a branch reads a softmax mixture over the outputs before it.

Source: arXiv 2603.15031; block form and normed values as in transformers Inkling2BlockAttentionResidual. The last
source is the running sum of the current block; a branch that opens a block starts a new one. With every branch
opening a block this is the paper's full form.
"""

import torch
from torch import Tensor

from day0.kernels.common.numerics import upcast
from day0.kernels.residual_mix.schema import ResidualMixAttributes


def read(
    a: ResidualMixAttributes,
    h: Tensor,  # [N, sources, H]
    *,
    query: Tensor,  # [H]
    key_weight: Tensor | None = None,  # [H]
) -> tuple[Tensor, Tensor]:  # [N, H], [N, sources] in float32
    """x = sum_l p_l v_l, p = softmax_l(scale <query, key_weight * RMS(h_l)>), v the sources or their RMS norms.

    Raises ValueError when the stream does not have as many sources as the operator reads.
    """
    if h.shape[-2] != a.sources:
        raise ValueError(f"the stream has {h.shape[-2]} sources, the operator reads {a.sources}")
    raw = upcast(h)
    normed = raw * torch.rsqrt(raw.square().mean(-1, keepdim=True) + a.norm_eps)
    keys = normed if key_weight is None else normed * upcast(key_weight)
    p = torch.softmax(a.scale * (keys @ upcast(query)), dim=-1)
    values = raw if a.values == "raw" else normed
    return (p.unsqueeze(-1) * values).sum(-2).to(h.dtype), p


def post(a: ResidualMixAttributes, h: Tensor, y: Tensor) -> Tensor:
    """Add y to the running sum, or make it a new source. h [N, sources, H], y [N, H] -> [N, sources (+ 1), H]."""
    new = y.unsqueeze(-2)
    return torch.cat((h, new), dim=-2) if a.opens_block else torch.cat((h[:, :-1], h[:, -1:] + new), dim=-2)
