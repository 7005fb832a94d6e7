"""Problems at the edges of the contract of norm/triton, for the check against float64."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.norm.schema import NormAttributes, weights

RAGGED = ((1, 0, 2), (5, 1, 0))


def _draw(a: Any, generator: torch.Generator) -> Mapping[str, Tensor]:
    return {name: torch.randn(w.shape, generator=generator, dtype=torch.float64) for name, w in weights(a).items()}


def _case(name: str, vectors: int = 1, **attributes: Any) -> Case:
    """`vectors`: how many vectors of groups * dim channels a token holds (heads of queries)."""

    def ports(a: NormAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
        shape = n, vectors * a.groups * a.dim
        x, gate = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        return x, gate if a.gate != "none" else None

    return Case(name, {"eps": 1e-6} | attributes, RAGGED, ports, _draw)


CASES = (
    _case("rms", dim=96),
    _case("rms of one channel, no weight", dim=1, weight="none"),
    _case("rms wider than a program's share", dim=2049, cast="after_weight"),
    _case("one plus, of heads", vectors=3, dim=64, weight="one_plus", cast="after_weight"),
    _case("one plus, rounded first", dim=65, weight="one_plus"),
    _case("groups of heads with a bias", vectors=2, dim=20, groups=3, bias=True),
    _case("layer", dim=33, form="layer", bias=True),
    _case("gated after", vectors=2, dim=48, gate="silu", cast="after_weight"),
    _case("gated before, in groups", dim=48, groups=2, gate="silu", gate_order="before_norm"),
    _case("gated by a sigmoid", dim=17, gate="sigmoid", weight="none"),
)
