"""Rows at the edges of sampling, for the check that only allowed tokens are drawn."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from day0.kernels.common.conformance import Finding, OwnCase
from day0.kernels.sample.reference import allowed
from day0.kernels.sample.triton_sample import sample, workspace

OPTIONS: tuple[tuple[float, int, float, float], ...] = (
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.3),
    (1.7, 9, 0.8, 0.2),
)


def drawn(
    logits: Tensor,  # [B, V]
    options: tuple[tuple[float, int, float, float], ...],  # temperature, top_k, top_p, min_p of each row
    seeds: tuple[int, ...],
) -> Tensor:  # [B] int64
    """A token for every row, at position 0."""
    columns = [torch.tensor(c, device=logits.device) for c in zip(*options, strict=True)]
    temperature, top_k, top_p, min_p = columns
    out = torch.full((logits.shape[0],), -7, dtype=torch.int64, device=logits.device)
    sample(
        logits,
        out,
        temperature=temperature.float(),
        top_k=top_k.int(),
        top_p=top_p.float(),
        min_p=min_p.float(),
        seed=torch.tensor(seeds, dtype=torch.int64, device=logits.device),
        position=torch.zeros_like(out),
        scratch=torch.full((workspace(*logits.shape),), float("nan"), device=logits.device),
    )
    return out


def _forbidden(
    name: str, rows: Callable[[torch.Generator], Tensor], dtype: torch.dtype, device: str, seed: int
) -> list[Finding]:
    """How many rows, each once with every option, drew what the reference does not allow."""
    logits = rows(torch.Generator().manual_seed(seed)).to(dtype)
    options = tuple(option for _ in logits for option in OPTIONS)
    many = logits.repeat_interleave(len(OPTIONS), dim=0)
    tokens = drawn(many.to(device), options, tuple(range(len(many)))).tolist()
    wrong = 0
    for row, (temperature, top_k, top_p, min_p), token in zip(many, options, tokens, strict=True):
        mask, _ = allowed(row, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        wrong += not (mask[token] if token >= 0 else token == -1 and not mask.any())
    return [Finding(name, 0, "forbidden draws", float(wrong), 0.0, 0.0)]


def _holes(g: torch.Generator) -> Tensor:
    rows = torch.randn(4, 40, generator=g)
    rows[0, ::3], rows[1, 5:], rows[2], rows[3, 7::9] = float("nan"), -math.inf, float("nan"), math.inf
    return rows


CASES = tuple(
    OwnCase(name, partial(_forbidden, name, rows))
    for name, rows in (
        ("a vocabulary over two blocks", lambda g: 3 * torch.randn(1, 2100, generator=g)),
        ("equal logits", lambda g: torch.zeros(1, 37)),
        ("NaN and infinity", _holes),
        ("one token", lambda g: torch.randn(1, 1, generator=g)),
    )
)
