"""Greedy continuations of package and reference in float32, and what a divergence is."""

from collections.abc import Sequence

import torch
from torch import Tensor

from day0.align.precision import LIMIT, jitter, ulp_floor
from day0.align.training_side import Reference, capture_reference
from day0.artifacts.alignment import GreedyCell, Prompt
from day0.engine.runner import Runner
from day0.kernels.interface.package import Package

TOKENS = 64
_PROBES = 2


def compare_greedy(
    package: Package,
    reference: Reference,
    truth: Reference,
    prompts: Sequence[Prompt],
    *,
    tokens: int = TOKENS,
    cached: bool = True,
) -> list[GreedyCell]:
    """Continue each prompt by `tokens` tokens with both, in the same dtype; `truth` is the reference in float64.

    `cached=False` runs the reference over the whole text for every token: for one whose cached decode is wrong.
    """
    cells = []
    for prompt in prompts:
        ids = list(prompt.ids)
        runner = Runner(package, sequences=1, tokens=len(ids) + tokens, poison=True)
        ours = runner.greedy(ids, count=tokens)
        theirs, rows = reference_greedy(reference, ids, tokens, cached=cached)
        split = next((i for i, (a, b) in enumerate(zip(ours.ids, theirs, strict=True)) if a != b), None)
        if split is None:
            cells.append(GreedyCell(prompt=prompt.name, tokens=tokens, equal=True, classified="equal"))
            continue
        noise, exact = _noise(reference, truth, [*ids, *theirs[:split]])
        # Each side's logits may be off by twice the noise (the precision gate's limit), in opposite directions.
        gap = float(exact.max() - exact[ours.ids[split]])
        best = rows[split].double().topk(2).values
        cells.append(
            GreedyCell(
                prompt=prompt.name,
                tokens=tokens,
                equal=False,
                first_difference=split,
                package_token=ours.ids[split],
                reference_token=theirs[split],
                package_margin=ours.margins[split],
                reference_margin=float(best[0] - best[1]),
                noise=noise,
                classified="tie" if gap <= 2 * LIMIT * noise else "bug",
            )
        )
    return cells


@torch.no_grad()
def reference_greedy(
    reference: Reference, ids: Sequence[int], tokens: int, *, cached: bool = True
) -> tuple[list[int], list[Tensor]]:
    """The reference's continuation and the logits [vocab] of each of its tokens."""
    chosen: list[int] = []
    rows: list[Tensor] = []
    with reference.exact():
        logits, cache = reference.forward(torch.tensor([list(ids)]), use_cache=cached)
        while True:
            rows.append(logits.reshape(-1, logits.shape[-1])[-1])
            chosen.append(int(rows[-1].argmax()))
            if len(chosen) == tokens:
                return chosen, rows
            if cached:
                start = len(ids) + len(chosen) - 1
                logits, cache = reference.forward(torch.tensor([chosen[-1:]]), start, cache, use_cache=True)
            else:
                logits, _ = reference.forward(torch.tensor([[*ids, *chosen]]))


def _noise(reference: Reference, truth: Reference, ids: list[int]) -> tuple[float, Tensor]:
    """How far rounding moves the last row's logits (max over the vocabulary), and that row in float64.

    Measured on the reference as it is and with its first layer's input moved by about one rounding, so that a router or
    index choice on a tie counts as noise; at least one rounding of the largest logit.
    """
    exact = truth.logits(ids)[-1].double()
    own = capture_reference(reference, ids, traced=False)
    rows = [own.logits[-1]]
    for seed in range(_PROBES):
        moved = jitter({0: own.layer_inputs[0]}, reference.dtype, seed)
        rows.append(capture_reference(reference, ids, force=moved, traced=False).logits[-1])
    measured = max(float((row.double() - exact).abs().max()) for row in rows)
    return max(measured, ulp_floor(reference.dtype, len(exact)) * float(exact.abs().max())), exact
