"""Greedy continuations of package and reference in float32, and what a divergence is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from day0.align.precision import jitter, ulp_floor
from day0.align.ties import LIMIT
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
        theirs, rows = reference_greedy(reference, ids, tokens, cached=cached)
        parted = []
        for part in partings(package, ids, theirs):
            noise, exact = _noise(reference, truth, [*ids, *theirs[: part.index]])
            # Each side's logits may be off by twice the noise (the precision gate's limit), in opposite directions.
            gap = float(exact.max() - exact[part.token])
            best = rows[part.index].double().topk(2).values
            margin = float(best[0] - best[1])
            parted.append(
                Judged(part, theirs[part.index], margin, noise, is_tie([gap, margin, part.margin], gap, noise))
            )
            if not parted[-1].tie:
                break
        cells.append(greedy_cell(prompt.name, tokens, parted))
    return cells


@dataclass(frozen=True)
class Parting:
    """A token of a continuation at which the package prefers another, or at which its logits are not finite."""

    index: int
    token: int  # the package's
    margin: float  # its best minus its second-best logit


@dataclass(frozen=True)
class Judged:
    """A parting and whether rounding explains it."""

    parting: Parting
    reference_token: int
    reference_margin: float
    noise: float
    tie: bool


def partings(package: Package, ids: Sequence[int], theirs: Sequence[int]) -> Iterator[Parting]:
    """Where the package leaves a continuation of `ids`; after each it goes on from the continuation's own token."""
    done = 0
    while done < len(theirs):
        runner = Runner(package, sequences=1, tokens=len(ids) + len(theirs), poison=True)
        found = runner.greedy([*ids, *theirs[:done]], count=len(theirs) - done)
        pairs = zip(found.ids, theirs[done:], found.margins, strict=True)
        split = next((i for i, (a, b, margin) in enumerate(pairs) if a != b or not math.isfinite(margin)), None)
        if split is None:
            return
        yield Parting(done + split, found.ids[split], found.margins[split])
        done += split + 1


def is_tie(figures: Sequence[float], gap: float, noise: float) -> bool:
    """Whether a gap between two logits is within what rounding moves; what is not finite is never a tie."""
    return all(map(math.isfinite, [*figures, gap, noise])) and gap <= 2 * LIMIT * noise


def greedy_cell(name: str, tokens: int, parted: Sequence[Judged]) -> GreedyCell:
    """What the partings of one prompt, in their order, come to."""
    if not parted:
        return GreedyCell(prompt=name, tokens=tokens, equal=True, classified="equal")
    decisive = next((judged for judged in parted if not judged.tie), parted[0])
    return GreedyCell(
        prompt=name,
        tokens=tokens,
        equal=False,
        first_difference=decisive.parting.index,
        package_token=decisive.parting.token,
        reference_token=decisive.reference_token,
        package_margin=decisive.parting.margin,
        reference_margin=decisive.reference_margin,
        noise=decisive.noise,
        ties=tuple(judged.parting.index for judged in parted if judged.tie),
        classified="tie" if decisive.tie else "bug",
    )


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
    measured = float((torch.stack(rows).double() - exact).abs().max())  # NaN where a row holds one
    return max(measured, ulp_floor(reference.dtype, len(exact)) * float(exact.abs().max())), exact
