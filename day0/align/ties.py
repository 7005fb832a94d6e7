"""Rows in which a discrete choice sits on a tie: the scores at its cut are closer than rounding moves them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from day0.align.capture import Capture
from day0.align.exactness import scores_port
from day0.align.training_side import ReferenceCapture
from day0.artifacts.alignment import Mode
from day0.kernels.interface.choice import Choice
from day0.reference.match import Match
from day0.reference.scores import arrange_scores, may_be_chosen

# A rounding error is at most this many times the reference's own.
LIMIT = 2.0

Located = Mapping[tuple[str, str, int | str], list[Match]]
Rows = dict[int | None, Tensor]  # layer -> [N] bool; None: the logits


@dataclass(frozen=True)
class Ties:
    """Rows whose values in a layer a tie may have moved: `shown` by the scores at the cut, or `unknown`, since a choice
    there is made by scores that the reference does not show.
    """

    shown: Rows
    unknown: Rows


def tied_rows(
    package: Capture, truth: ReferenceCapture, reference: ReferenceCapture, located: Located, mode: Mode
) -> Ties:
    """The rows of one prompt that ties may have moved, by the runs of it in a serving dtype and in float64.

    A tie in one layer moves its own row there. On the package's own activations ("propagated") it then moves the row
    and those after it, which read it, in every later layer.
    """
    none = torch.zeros(len(package.logits), dtype=torch.bool)
    shown: Rows = dict.fromkeys(package.layer_outputs, none)
    unknown = dict(shown)
    for call in package.calls:
        for name, choice in call.choices.items():
            places = located.get((call.path, call.method, scores_port(name)), [])
            location = places[0].location if places else ""
            exact, rounded = (scores_at(run, location, choice) for run in (truth, reference))
            if call.layer is None:
                continue
            if exact is None or rounded is None:
                # Where no candidate is left out, none can take another's place.
                unknown[call.layer] = unknown[call.layer] | (may_be_chosen(choice.scores).sum(1) > choice.kept)
            else:
                shown[call.layer] = shown[call.layer] | on_a_tie(choice, exact, rounded)
    return Ties(*(_reached(rows, mode) for rows in (shown, unknown)))


def _reached(own: Rows, mode: Mode) -> Rows:
    """The rows that those of each layer move."""
    found: Rows = {}
    carried: Tensor | bool = False
    for layer in sorted(layer for layer in own if layer is not None):
        # What the last layer gives is all that the logits see.
        found[layer] = found[None] = own[layer] | carried
        if mode == "propagated":
            carried = carried | (own[layer].cumsum(0) > 0)
    return found


def on_a_tie(choice: Choice, truth: Tensor, reference: Tensor) -> Tensor:
    """[N] bool: the rows whose best candidate that is left out scores no less than the worst that is kept, but for
    rounding. `truth` and `reference`: the choice's scores [N, candidates] in float64 and in the serving dtype.
    """
    allowed = may_be_chosen(choice.scores) & truth.isfinite() & reference.isfinite()
    if choice.kept >= allowed.shape[1]:
        return torch.zeros(len(truth), dtype=torch.bool)
    exact = truth.double()
    moved = (reference.double() - exact).masked_fill(~allowed, 0.0).abs().amax(1)
    unit = torch.finfo(reference.dtype).eps / 2
    noise = torch.maximum(moved, unit * exact.masked_fill(~allowed, 0.0).abs().amax(1))
    ordered = exact.masked_fill(~allowed, float("-inf")).sort(dim=1, descending=True).values
    kept, left = ordered[:, choice.kept - 1], ordered[:, choice.kept]
    # Each of the two may be off by LIMIT times the reference's error, in opposite directions.
    tied: Tensor = (left > float("-inf")) & (kept - left <= 2 * LIMIT * noise)
    return tied


def scores_at(run: ReferenceCapture, location: str, choice: Choice) -> Tensor | None:
    """What a line of the reference chose by in this run, laid out as the choice's scores; None where it did not."""
    return arrange_scores(run.scores[location], choice.scores) if location in run.scores else None
