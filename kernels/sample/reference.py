"""The next token of each sequence, in plain PyTorch: what is allowed, with what probability, and the draw."""

import math

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float32).max


def allowed(
    logits: Tensor,  # [V] of one sequence
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> tuple[Tensor, Tensor]:  # [V] bool, [V] float64 logits divided by the temperature
    """Which tokens may be drawn: the top_k best, of them the fewest whose share of their probability reaches top_p,
    of them those at least min_p times as probable as the best. Equal logits: the smaller token first.

    top_k 0, top_p 1 and min_p 0 leave everything in; temperature 0 leaves the best token alone. NaN and -inf are never
    allowed; inf counts as the largest float32.
    """
    scaled = logits.double().nan_to_num(nan=-math.inf, posinf=LARGEST, neginf=-math.inf)
    order = scaled.argsort(descending=True, stable=True)
    order = order[scaled[order] > -math.inf]
    if temperature == 0.0:
        kept = order[:1]
    else:
        scaled = scaled / temperature
        kept = order[:top_k] if top_k else order
        p = torch.softmax(scaled[kept], dim=-1)
        if top_p < 1.0:
            before = p.cumsum(-1) - p
            kept, p = kept[before < top_p], p[before < top_p]
        kept = kept[p >= min_p * p[:1]]
    mask = torch.zeros_like(scaled, dtype=torch.bool)
    mask[kept] = True
    return mask, scaled
