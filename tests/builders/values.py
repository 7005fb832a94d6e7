"""Random values for the parameters of a small model.

transformers initialises many parameters to a constant (norm weights, A_log, router biases, the base and scale of
hyper-connections), and matrices so small that a layer hardly changes its input. An implementation that forgets such a
parameter, or a whole branch, would agree with it. Here each parameter gets values that matter.
"""

import math
import re
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

Draw = Callable[[Tensor, Generator], Tensor]
"""(a parameter, a seeded generator) -> float32 values of its shape."""


def normal(std: float, mean: float = 0.0) -> Draw:
    return lambda like, generator: torch.randn(like.shape, generator=generator) * std + mean


def uniform(low: float, high: float) -> Draw:
    return lambda like, generator: torch.rand(like.shape, generator=generator) * (high - low) + low


def fan_in(gain: float = 1.0) -> Draw:
    """Matrices [..., out, in]: each output is `gain` times as large as a unit input."""
    return lambda like, generator: torch.randn(like.shape, generator=generator) * gain / math.sqrt(like.shape[-1])


def convolution(like: Tensor, generator: Generator) -> Tensor:
    """Depthwise kernels [channels, 1, width]."""
    return torch.randn(like.shape, generator=generator) / math.sqrt(like.shape[1] * like.shape[2])


def around_initial(std: float) -> Draw:
    """Keeps the constant that the model starts with (1, or 0 for norms that add 1), plus noise."""
    return lambda like, generator: like.float().mean() + torch.randn(like.shape, generator=generator) * std


def softplus_step(low: float, high: float) -> Draw:
    """x with softplus(x) log-uniform in [low, high]: decays that forget within a few to many tokens."""

    def draw(like: Tensor, generator: Generator) -> Tensor:
        step = torch.exp(uniform(math.log(low), math.log(high))(like, generator))
        return step + torch.log(-torch.expm1(-step))

    return draw


DECAY: dict[bool, list[tuple[str, Draw]]] = {
    False: [(r"A_log$", uniform(-2.3, 1.8)), (r"dt_bias$", softplus_step(0.08, 0.7))],
    True: [(r"A_log$", uniform(-0.5, 0.7)), (r"dt_bias$", uniform(-5.0, 0.0))],
}
"""By whether the decay is bounded (`Family.bounded_decay`)."""

VALUES: list[tuple[str, Draw]] = [
    (r"embed_tokens\.weight$", normal(1.0)),
    (r"ngram_embedding\.weight$", normal(1.0)),
    # Wide logits: the best token leads by more than rounding error.
    (r"lm_head\.weight$", fan_in(2.5)),
    # Half-sized branch outputs keep one flipped expert or index from changing all that follows.
    (r"(o_proj|out_proj|down_proj)(\.weight)?$", fan_in(0.5)),
    (r"conv1d\.weight$", convolution),
    (r"_hc\.scale$", uniform(0.6, 1.4)),
    (r"_hc\.base$", normal(0.5, mean=-0.5)),
    (r"compress_ape$", normal(0.7)),
    (r"e_score_correction_bias$", normal(0.15)),
    (r"norm\w*\.(weight|bias)$", around_initial(0.2)),
    (r"norm_(key|query|conv)\.weight$", around_initial(0.2)),
]
"""First match decides. Matrices that none matches are `fan_in()`; a vector that none matches is an error."""

LEARNED_BUFFERS = re.compile(r"e_score_correction_bias$")
OTHER_TOWERS = re.compile(r"\bvisual\b")


@torch.no_grad()
def randomise(model: nn.Module, seed: int, bounded_decay: bool) -> None:
    """Fill every parameter and learned buffer of the text model in place; float32, reproducible from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters())
    tensors |= {name: buffer for name, buffer in model.named_buffers() if LEARNED_BUFFERS.search(name)}
    for name, tensor in tensors.items():
        if not OTHER_TOWERS.search(name):
            tensor.copy_(draw_for(name, tensor, bounded_decay)(tensor, generator))


def draw_for(name: str, tensor: Tensor, bounded_decay: bool) -> Draw:
    """The distribution of the parameter of this name."""
    for pattern, draw in DECAY[bounded_decay] + VALUES:
        if re.search(pattern, name):
            return draw
    if tensor.ndim < 2:
        raise ValueError(f"{name} {tuple(tensor.shape)}: say in tests/builders/values.py what it is filled with")
    return fan_in()
