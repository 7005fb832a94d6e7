"""Random weights that matter: no constant parameters, no branch too weak to be seen."""

import math
import re

import torch
from torch import Generator, Tensor, nn

_DECAY = re.compile(r"(^|\.)A_log$")
_STEP_BIAS = re.compile(r"dt_bias$|time_step_bias$")
# Noise on what a class initialises to a constant (norm weights, gates, router biases), around that constant.
_NOISE = 0.2


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Fill every parameter and saved buffer in place, in the model's dtype, reproducibly from `seed`.

    A checkpoint's constants (norm weights of one, biases of zero) would hide that an implementation forgets them, and
    matrices of the usual initial size make branches too weak to tell. Decay rates are kept where a state forgets
    within a few to a few dozen tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    saved = model.state_dict(keep_vars=True)
    for name, tensor in sorted(saved.items()):
        if tensor.is_floating_point():
            tensor.copy_(_values(name, tensor, id(tensor) in embeddings, generator))


def _values(name: str, tensor: Tensor, embedding: bool, generator: Generator) -> Tensor:
    normal = torch.randn(tensor.shape, generator=generator)
    if _DECAY.search(name):
        return normal * 0.3
    if _STEP_BIAS.search(name):
        return normal * 0.5 - 1.5
    if embedding:
        return normal
    if tensor.dim() >= 2 and tensor.numel() > tensor.shape[0]:
        return normal / math.sqrt(math.prod(tensor.shape[2:]) if tensor.shape[1] == 1 else tensor.shape[-1])
    centre = float(tensor.float().mean())
    return normal * _NOISE + (centre if math.isfinite(centre) else 0.0)
