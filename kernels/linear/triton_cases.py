"""Problems at the edges of the contract of linear/triton, for the check against float64."""

from collections.abc import Mapping

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.linear.schema import LinearAttributes, weights


def _draw(a: LinearAttributes, generator: torch.Generator) -> Mapping[str, Tensor]:
    return {
        name: torch.randn(w.shape, generator=generator, dtype=torch.float64) / a.in_features**0.5
        for name, w in weights(a).items()
    }


def _ports(a: LinearAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    return (torch.randn(n, a.in_features, generator=generator, dtype=torch.float64),)


def _case(name: str, tokens: tuple[int, ...], in_features: int, out_features: int, **more: object) -> Case:
    attributes = {"in_features": in_features, "out_features": out_features, **more}
    return Case(name, attributes, (tokens,), _ports, _draw)


CASES = (
    _case("columns and rows that fill no tile", (1, 2, 7), 72, 69),
    _case("more columns than a tile", (1, 3), 2061, 5),
    _case("bias and scale", (1, 2), 40, 33, bias=True, scale=0.25),
    _case("parts", (1, 8), 40, 48, split=(7, 40, 1)),
    _case("one column, one row", (1, 2), 1, 1),
    _case("as many tokens as are few, and one more", (8, 9), 40, 33, bias=True),
)
