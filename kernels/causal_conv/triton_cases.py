"""Problems at the edges of the convolution's contract, for the step-by-step check against float64."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from day0.kernels.causal_conv.schema import CausalConvAttributes, weights
from day0.kernels.common.conformance import Case


def draw_ports(a: CausalConvAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    return (torch.randn(n, a.channels, generator=generator, dtype=torch.float64),)


def draw_weights(a: CausalConvAttributes, generator: torch.Generator) -> Mapping[str, Tensor]:
    return {n: torch.randn(w.shape, generator=generator, dtype=torch.float64) for n, w in weights(a).items()}


def _case(name: str, attributes: Mapping[str, Any], *chunks: tuple[int, ...], **options: Any) -> Case:
    return Case(name, attributes, chunks, draw_ports, draw_weights, **options)


KDA: dict[str, Any] = dict(channels=384, kernel_size=4, activation="silu", split=(128, 128, 128))

# Chunks of 1, 2 and 3 tokens are shorter than the window; 15 .. 17 and 63 .. 65 straddle blocks of rows.
CASES: tuple[Case, ...] = (
    _case("short chunks", KDA, (1, 2, 3, 1), (3, 1, 1), (2, 0, 2, 1), (0, 4, 1)),
    _case("blocks of rows, packed", KDA, (15, 1), (16, 3), (17, 64), (65,), (0, 63)),
    _case("decode", KDA, (1, 1, 1, 1, 1), (0, 1, 1), (1, 1)),
    _case("verify", KDA, (5, 2), (2, 16), (1, 4), phase="verify"),
    _case("bias, no activation", dict(channels=100, kernel_size=3, bias=True), (19, 1, 2), (1, 33)),
    _case("dilation", dict(channels=64, kernel_size=4, dilation=3, activation="silu"), (4, 30, 1), (20, 1, 9), (1, 1)),
    _case("two taps", dict(channels=64, kernel_size=2), (1, 18), (20, 1)),
)
