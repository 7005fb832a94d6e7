"""Plain PyTorch residual schemes, one function per method; each scheme's formulas stand in a file of its own.

The methods of an operator share its weights, so every function is called with all of them.
"""

from torch import Tensor

from day0.kernels.residual_mix import attention, gated_streams, mhc
from day0.kernels.residual_mix.schema import ResidualMixAttributes, methods

Mix = Tensor | tuple[Tensor, ...]


def residual_mix(a: ResidualMixAttributes, h: Tensor, y: Tensor) -> Tensor:  # [N, width] each
    """h' = h + multiplier * y."""
    _require(a, "")
    return h + (y if a.multiplier == 1.0 else y * a.multiplier)


def expand(a: ResidualMixAttributes, x: Tensor, **weights: Tensor) -> Tensor:
    """The stream's start: `streams` copies of x, or x as the only source. [N, width] -> [N, streams, width]."""
    _require(a, "expand")
    return x.unsqueeze(-2).repeat(1, max(a.streams, 1), 1)


def collapse(a: ResidualMixAttributes, h: Tensor, **weights: Tensor) -> Tensor:
    """The stream's end. [N, streams or sources, width] -> [N, width]."""
    _require(a, "collapse")
    if a.scheme == "mhc":
        return h.mean(-2) if a.collapse == "mean" else h.sum(-2)
    if a.scheme == "gated_streams":
        return gated_streams.collapse(a, h, **weights)
    return attention.read(a, h, **weights)[0]


def pre(a: ResidualMixAttributes, h: Tensor, **weights: Tensor) -> tuple[Tensor, Mix]:
    """The branch's input [N, width], and what `post` needs to know.

    mix is (post gates [N, S], mixing matrix [N, S, S]) for mhc, the injection weights [N, S] for gated_streams, and
    the probabilities [N, sources] for attention, whose `post` does not need them.
    """
    _require(a, "pre")
    if a.scheme == "mhc":
        return mhc.pre(a, h, **weights)
    return gated_streams.pre(a, h, **weights) if a.scheme == "gated_streams" else attention.read(a, h, **weights)


def post(a: ResidualMixAttributes, h: Tensor, y: Tensor, mix: Mix, **weights: Tensor) -> Tensor:
    """The stream after the branch, whose output is y [N, width]."""
    _require(a, "post")
    if a.scheme == "attention":
        return attention.post(a, h, y)
    return mhc.post(h, y, mix) if isinstance(mix, tuple) else gated_streams.post(h, y, mix)


def _require(a: ResidualMixAttributes, method: str) -> None:
    assert method in methods(a), f"scheme {a.scheme}, role {a.role} has no method {method!r}"
