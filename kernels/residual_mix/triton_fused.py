"""The residual schemes on fused Triton kernels; the functions of the reference, method by method."""

import torch
from torch import Tensor

from day0.kernels.common.triton_launch import require
from day0.kernels.residual_mix import triton_attention, triton_gated_streams, triton_mhc, triton_streams
from day0.kernels.residual_mix.schema import ResidualMixAttributes, methods

KERNEL = "residual_mix/triton"
Mix = Tensor | tuple[Tensor, ...]


def residual_mix(a: ResidualMixAttributes, h: Tensor, y: Tensor) -> Tensor:  # [N, width] each
    """h' = h + multiplier * y."""
    _require(a, "")
    out = torch.empty_like(h, memory_format=torch.contiguous_format)
    triton_streams.add(h, y, multiplier=a.multiplier, out=out)
    return out


def expand(a: ResidualMixAttributes, x: Tensor, **weights: Tensor) -> Tensor:
    """The stream's start. [N, width] -> [N, streams, width]."""
    _require(a, "expand")
    out = x.new_empty(x.shape[0], max(a.streams, 1), x.shape[1])
    triton_streams.expand(x, out=out)
    return out


def collapse(a: ResidualMixAttributes, h: Tensor, **weights: Tensor) -> Tensor:
    """The stream's end. [N, streams or sources, width] -> [N, width]."""
    _require(a, "collapse")
    if a.scheme == "attention":
        return _attend(a, h, **weights)[0]
    if a.scheme == "gated_streams":
        return _gated(a, h, **weights)[0]
    out = h.new_empty(h.shape[0], h.shape[2])
    triton_streams.collapse(h, mean=a.collapse == "mean", out=out)
    return out


def pre(a: ResidualMixAttributes, h: Tensor, **weights: Tensor) -> tuple[Tensor, Mix]:
    """The branch's input [N, width], and what `post` needs to know: as the reference gives it."""
    _require(a, "pre")
    if a.scheme == "attention":
        return _attend(a, h, **weights)
    if a.scheme == "gated_streams":
        return _gated(a, h, **weights)
    x, gates, mixing = mhc_outputs(h)
    triton_mhc.read(
        h,
        weights["fn"],
        weights["base"],
        weights["scale"],
        norm_eps=a.norm_eps,
        mix_eps=a.mix_eps,
        iterations=a.sinkhorn_iterations,
        out=(x, gates, mixing),
        scratch=triton_mhc.workspace(h),
    )
    return x, (gates, mixing)


def post(a: ResidualMixAttributes, h: Tensor, y: Tensor, mix: Mix, **weights: Tensor) -> Tensor:
    """The stream after the branch, whose output is y [N, width]."""
    _require(a, "post")
    if a.scheme == "attention":
        out = h.new_empty(h.shape[0], h.shape[1] + a.opens_block, h.shape[2])
        triton_attention.extend(h, y, opens=a.opens_block, out=out)
        return out
    out = torch.empty_like(h, memory_format=torch.contiguous_format)
    if isinstance(mix, tuple):
        triton_mhc.write(h, y, mix[0], mix[1], out=out)
    else:
        triton_gated_streams.write(h, y, mix, out=out)
    return out


def mhc_outputs(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What an mhc `pre` of h [N, S, H] writes: x [N, H], post gates [N, S] and mixing matrices [N, S, S]."""
    tokens, streams, width = h.shape
    gates = torch.empty(tokens, streams, dtype=torch.float32, device=h.device)
    mixing = torch.empty(tokens, streams, streams, dtype=torch.float32, device=h.device)
    return h.new_empty(tokens, width), gates, mixing


def _gated(
    a: ResidualMixAttributes, h: Tensor, *, norm: Tensor, down: Tensor, up: Tensor, inject: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    x = h.new_empty(h.shape[0], h.shape[2])
    mix = h.new_empty(h.shape[0], h.shape[1])
    out = (x, None if inject is None else mix)
    scratch = triton_gated_streams.workspace(h, a.rank)
    triton_gated_streams.read(h, norm, down, up, inject, norm_eps=a.norm_eps, out=out, scratch=scratch)
    return x, mix


def _attend(
    a: ResidualMixAttributes, h: Tensor, *, query: Tensor, key_weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    require(h.shape[-2] == a.sources, KERNEL, f"a stream of {a.sources} sources, not {h.shape[-2]}")
    x = h.new_empty(h.shape[0], h.shape[2])
    p = torch.empty(h.shape[0], h.shape[1], dtype=torch.float32, device=h.device)
    triton_attention.read(
        h, query, key_weight, norm_eps=a.norm_eps, scale=a.scale, normed=a.values == "normed", out=(x, p)
    )
    return x, p


def _require(a: ResidualMixAttributes, method: str) -> None:
    assert method in methods(a), f"scheme {a.scheme}, role {a.role} has no method {method!r}"
