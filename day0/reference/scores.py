"""The scores that a reference chooses by: what it hands to a top-k or a sort, in whatever pieces."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from day0.reference.match import error

# Scores that differ by this much at most, after the best common factor, are the same scores, computed wrongly.
_RELATED = 0.3


@dataclass(frozen=True)
class ScoreMatch:
    """Which line of the reference chooses by scores like these; `error` is relative L2 over what may be chosen."""

    location: str
    error: float


def find_scores(
    recorded: Mapping[str, Sequence[Tensor]], scores: Tensor, *, line: str | None = None
) -> ScoreMatch | None:
    """The recorded scores closest to `scores` [N, candidates] (-inf: may not be chosen); None: none are like them.

    A common factor is no difference in kind: scores of another scale are the same scores, and their error tells it.
    Those that are not finite are like any, and infinitely wrong. `line`: the reference is known to choose by the scores
    of this one, so that they are compared whatever they are, unless it did not run.
    """
    allowed = may_be_chosen(scores)
    ours = scores[allowed].double()
    best: ScoreMatch | None = None
    for location, theirs in _candidates(recorded, scores):
        exact = theirs[allowed].double()
        found = ScoreMatch(location, error(ours, exact))
        alike = location == line if line is not None else _related(ours, exact)
        if alike and (best is None or found.error < best.error):
            best = found
    return best


def may_be_chosen(scores: Tensor) -> Tensor:
    """[N, candidates] bool. A score that is NaN may be: it is wrong, and must not pass for a candidate left out."""
    allowed: Tensor = scores != float("-inf")
    return allowed


def _related(ours: Tensor, exact: Tensor) -> bool:
    factor = float(ours @ exact / (exact @ exact))
    return not bool(ours.isfinite().all()) or (factor > 0 and error(ours, factor * exact) <= _RELATED)


def arrange_scores(pieces: Sequence[Tensor], scores: Tensor) -> Tensor | None:
    """One line's recorded scores, laid out as `scores` [N, candidates]; NaN where none was recorded.

    The pieces are runs of that line in their order, [..., candidates] each. Together they have a row for every row, or
    for every row that has a candidate at all. None when they have not.
    """
    rows = [piece.reshape(-1, piece.shape[-1]) for piece in pieces]
    count = sum(len(piece) for piece in rows)
    places = torch.arange(len(scores))
    if count != len(scores):
        places = places[may_be_chosen(scores).any(1)]
        if count != len(places):
            return None
    laid_out = torch.full(scores.shape, float("nan"), dtype=rows[0].dtype)
    for piece, own in zip(rows, places.split([len(piece) for piece in rows]), strict=True):
        width = min(piece.shape[1], scores.shape[1])
        laid_out[own, :width] = piece[:, :width]
    return laid_out


def _candidates(recorded: Mapping[str, Sequence[Tensor]], scores: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The recorded scores that cover what may be chosen, with their location."""
    allowed = may_be_chosen(scores)
    for location, pieces in recorded.items():
        theirs = arrange_scores(pieces, scores)
        if theirs is not None and bool(allowed.any()) and bool(theirs[allowed].isfinite().all()):
            yield location, theirs
