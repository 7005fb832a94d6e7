"""Problems at the edges of the contract of residual_mix/triton, for the check against float64."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.residual_mix.schema import ResidualMixAttributes, weights

MHC = {"scheme": "mhc", "width": 40, "streams": 4, "norm_eps": 1e-6, "sinkhorn_iterations": 4, "mix_eps": 1e-6}
GATED = {"scheme": "gated_streams", "width": 40, "streams": 4, "norm_eps": 1e-6, "rank": 16}
ATTENTION = {"scheme": "attention", "width": 40, "sources": 5, "norm_eps": 1e-6, "weighted_keys": True}
# One token, a tile of tokens and one more, and more than a tile, in packs of several sequences.
RAGGED = ((1, 0, 2), (16, 1, 0), (0, 17, 3))


def _draw(a: Any, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Weights whose products stay of size one."""
    return {
        name: torch.randn(w.shape, generator=generator, dtype=torch.float64)
        / (w.shape[-1] ** 0.5 if len(w.shape) > 1 else 1.0)
        for name, w in weights(a).items()
    }


def _ports(*names: str) -> Callable[[Any, int, torch.Generator], tuple[Tensor | None, ...]]:
    """h: the stream; y: a branch's output or a vector; mix: injection weights; sources: as many as attention reads."""

    def ports(a: ResidualMixAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
        count = a.sources or a.streams
        shapes = {"h": (n, count, a.width), "y": (n, a.width), "mix": (n, count)}
        return tuple(torch.randn(shapes[name], generator=generator, dtype=torch.float64) for name in names)

    return ports


def _case(name: str, method: str, attributes: Mapping[str, Any], ports: tuple[str, ...]) -> Case:
    return Case(name, attributes, RAGGED, _ports(*ports), _draw, method)


CASES = (
    _case("add", "", {"scheme": "add", "width": 40}, ("y", "y")),
    _case("add scaled, wider than a block", "", {"scheme": "add", "width": 1025, "multiplier": 0.5}, ("y", "y")),
    _case("mhc reads", "pre", MHC, ("h",)),
    _case("mhc reads 3 streams, one Sinkhorn step, no eps", "pre",
          MHC | {"streams": 3, "sinkhorn_iterations": 1, "mix_eps": 0.0, "width": 65}, ("h",)),
    _case("mhc reads 1 stream", "pre", MHC | {"streams": 1, "width": 16}, ("h",)),
    _case("mhc starts", "expand", {"scheme": "mhc", "role": "boundary", "width": 40, "streams": 4}, ("y",)),
    _case("mhc ends in a mean", "collapse", {"scheme": "mhc", "role": "boundary", "width": 40, "streams": 4}, ("h",)),
    _case("mhc ends in a sum", "collapse",
          {"scheme": "mhc", "role": "boundary", "width": 1030, "streams": 3, "collapse": "sum"}, ("h",)),
    _case("gated reads", "pre", GATED, ("h",)),
    _case("gated reads 3 streams, rank 20", "pre", GATED | {"streams": 3, "rank": 20, "width": 130}, ("h",)),
    _case("gated writes", "post", GATED, ("h", "y", "mix")),
    _case("gated ends", "collapse", GATED | {"role": "boundary"}, ("h",)),
    _case("gated starts", "expand", GATED | {"role": "boundary"}, ("y",)),
    _case("attention reads", "pre", ATTENTION, ("h",)),
    _case("attention reads 1 source", "pre", ATTENTION | {"sources": 1}, ("h",)),
    _case("attention reads normed values, plain keys", "pre",
          ATTENTION | {"sources": 9, "values": "normed", "weighted_keys": False, "scale": 0.25}, ("h",)),
    _case("attention adds to the running sum", "post", ATTENTION, ("h", "y", "mix")),
    _case("attention opens a block", "post", ATTENTION | {"opens_block": True}, ("h", "y", "mix")),
    _case("attention ends", "collapse", ATTENTION | {"role": "boundary", "sources": 4}, ("h",)),
)  # fmt: skip
