"""Run a reference one sequence at a time, whatever its cache is called."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Greedy:
    """A greedy continuation: ids [n], the logits each was chosen from [n, vocab], best minus second best logit [n]."""

    ids: Tensor
    logits: Tensor
    margins: Tensor


class ReferenceRunner:
    """Calls a transformers model on token ids: batch 1, never padded, with or without its cache."""

    def __init__(self, model: Any) -> None:
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self.cache_name = "cache_params" if "cache_params" in parameters else "past_key_values"
        self.takes_positions = "position_ids" in parameters

    @torch.no_grad()
    def forward(self, ids: Tensor, start: int = 0, cache: Any = None, use_cache: bool = False) -> tuple[Tensor, Any]:
        """Logits [T, vocab] of ids [T] that stand at positions start .. start + T - 1, and the cache (None without).

        A cache that is passed in is updated in place.
        """
        arguments: dict[str, Any] = dict(input_ids=ids.reshape(1, -1), use_cache=use_cache)
        if self.takes_positions:
            arguments["position_ids"] = torch.arange(start, start + ids.numel())[None]
        if cache is not None:
            arguments[self.cache_name] = cache
        out = self.model(**arguments)
        return out.logits[0], getattr(out, self.cache_name, None) or cache

    def greedy(self, ids: Tensor, count: int) -> Greedy:
        """The next `count` tokens after ids [T], decoded one at a time with the cache."""
        logits, cache = self.forward(ids, use_cache=True)
        rows = [logits[-1]]
        chosen = [int(rows[0].argmax())]
        while len(chosen) < count:
            step = torch.tensor([chosen[-1]])
            logits, cache = self.forward(step, ids.numel() + len(chosen) - 1, cache, use_cache=True)
            rows.append(logits[-1])
            chosen.append(int(rows[-1].argmax()))
        stacked = torch.stack(rows)
        best = stacked.topk(2, dim=-1).values
        return Greedy(torch.tensor(chosen), stacked, best[:, 0] - best[:, 1])
