"""The edges of the fused `moe`: odd widths, ties, groups, empty experts, more rows than a block."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.moe import schema
from day0.kernels.moe.schema import MoeAttributes


def ports(a: MoeAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    """x [n, width] of unit variance."""
    return (torch.randn(n, a.width, dtype=torch.float64, generator=generator),)


def weights(a: MoeAttributes, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Products keep the variance of what they are given; the bias is as large as the scores' spread."""

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        size = 0.3 if name == "router_bias" else shape[-1] ** -0.5
        return size * torch.randn(shape, dtype=torch.float64, generator=generator)

    return {name: draw(name, w.shape) for name, w in schema.weights(a).items()}


def _case(name: str, chunks: tuple[tuple[int, ...], ...], **attributes: Any) -> Case:
    sizes = {"width": 48, "hidden": 40, "experts": 12, "top_k": 3, "scores": "softmax"}
    return Case(name, sizes | attributes, chunks, ports, weights)


CASES = (
    _case("one token", ((1,),)),
    _case(
        "few tokens, sigmoid with bias and scale", ((7, 2, 1),), scores="sigmoid", selection_bias=True, routed_scale=2.5
    ),
    _case("more rows of an expert than a block holds", ((90,),), experts=2, top_k=1),
    _case("every expert chosen", ((5,),), experts=4, top_k=4),
    _case("groups", ((9,),), scores="sigmoid", selection_bias=True, groups=4, groups_kept=2, renormalise_eps=1e-20),
    _case("weights in the activation dtype", ((9,),), router_float32=False),
    _case("clamped, shared expert behind a gate", ((6,),), clamp=0.7, shared_hidden=24, shared_gate="sigmoid"),
    _case("gelu, not renormalised", ((6,),), activation="gelu_tanh", renormalise=False),
    _case("relu", ((6,),), activation="relu"),
    _case("relu2, odd sizes", ((6,),), activation="relu2", width=33, hidden=17, experts=5, top_k=2),
)
