"""Problems at the edges of the contract of rotary/triton, for the check against float64."""

from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.rotary.schema import RotaryAttributes

RAGGED = ((1, 0, 63, 1), (5, 1, 0, 64), (65,))


def _case(name: str, heads: int = 1, **attributes: Any) -> Case:
    def ports(a: RotaryAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
        return (torch.randn(n, heads * a.head_dim, generator=generator, dtype=torch.float64),)

    return Case(name, {"theta": 1e4} | attributes, RAGGED, ports, lambda a, generator: {})


CASES = (
    _case("half", heads=3, head_dim=16, rotary_dim=16),
    _case("partial, behind the rest", heads=2, head_dim=24, rotary_dim=8, offset=16, layout="interleaved"),
    _case("partial, in the middle", head_dim=20, rotary_dim=6, offset=4, float32_tables=True),
    _case("interleaved read, half written", heads=2, head_dim=12, rotary_dim=12, layout="interleaved_to_half"),
    _case("one pair", heads=5, head_dim=2, rotary_dim=2),
    _case("yarn", head_dim=16, rotary_dim=16, scaling="yarn", factor=4.0, original_max_position_embeddings=64),
)
