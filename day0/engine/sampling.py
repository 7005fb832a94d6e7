"""Draws next tokens on the host: the plain twin of `kernels/sample`, with all of a request's options."""

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from day0.engine.request import Drawn, Request, Sampling
from day0.kernels.sample.reference import allowed


def draw(logits: Tensor, request: Request, generated: list[int]) -> Drawn:
    """The token after `request`'s prompt and `generated`, from the logits [V] there.

    The numbers behind a draw are those of a counter-based generator at (seed, position): nothing else that runs, and
    no earlier draw, has a part in it.
    """
    sampling = request.sampling
    scores = logits.double()
    adjusted = _adjusted(scores, request.prompt, generated, sampling)
    if sampling.temperature == 0.0:
        token = int(adjusted.argmax())
    else:
        token = _drawn(adjusted, sampling, len(request.prompt) + len(generated))
    if sampling.logprobs is None:
        return Drawn(token)
    logprobs = scores.log_softmax(-1)
    best = logprobs.topk(min(sampling.logprobs, logprobs.numel())) if sampling.logprobs else None
    top = () if best is None else tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return Drawn(token, float(logprobs[token]), top)


def _adjusted(scores: Tensor, prompt: tuple[int, ...], generated: list[int], sampling: Sampling) -> Tensor:
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*prompt, *generated}), device=scores.device)
        before = scores[seen]
        after = torch.where(before > 0, before / sampling.repetition_penalty, before * sampling.repetition_penalty)
        scores = scores.scatter(0, seen, after)
    if generated and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = Counter(generated)
        seen = torch.tensor(list(counts), device=scores.device)
        times = torch.tensor(list(counts.values()), dtype=scores.dtype, device=scores.device)
        penalty = sampling.presence_penalty + sampling.frequency_penalty * times
        scores = scores.scatter(0, seen, scores[seen] - penalty)
    if sampling.logit_bias:
        biased = torch.tensor(list(sampling.logit_bias), device=scores.device)
        bias = torch.tensor(list(sampling.logit_bias.values()), dtype=scores.dtype, device=scores.device)
        scores = scores.scatter(0, biased, scores[biased] + bias)
    return scores


def _drawn(scores: Tensor, sampling: Sampling, position: int) -> int:
    """The token with the largest probability / E, E exponential: a draw from the allowed ones (Gumbel 1954)."""
    mask, scaled = allowed(
        scores, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
    )
    generator = np.random.Generator(np.random.Philox(key=sampling.seed, counter=position << 64))
    race = torch.from_numpy(np.log(generator.standard_exponential(scores.numel()))).to(scaled.device)
    return int((scaled - race).masked_fill(~mask, -torch.inf).argmax())
