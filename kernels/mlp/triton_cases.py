"""Problems at the edges of the contract of mlp/triton, for the check against float64."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.mlp.schema import MlpAttributes, weights

RAGGED = ((1, 0, 2), (5, 1, 0))


def _draw(a: Any, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Weights whose products reach past the clamps."""
    return {
        name: 2.0 * torch.randn(w.shape, generator=generator, dtype=torch.float64) / w.shape[-1] ** 0.5
        for name, w in weights(a).items()
    }


def _ports(a: MlpAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    return (torch.randn(n, a.width, generator=generator, dtype=torch.float64),)


CASES = tuple(
    Case(name, attributes, RAGGED, _ports, _draw)
    for name, attributes in (
        ("silu", {"width": 16, "hidden": 40}),
        ("silu, clamped", {"width": 16, "hidden": 40, "clamp": 1.5}),
        ("gelu, wider than a block", {"width": 8, "hidden": 1025, "activation": "gelu_tanh"}),
        ("relu, one channel", {"width": 3, "hidden": 1, "activation": "relu"}),
        ("relu2 without a gate", {"width": 16, "hidden": 33, "activation": "relu2", "gated": False}),
    )
)
