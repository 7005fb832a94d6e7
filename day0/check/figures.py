"""The accuracy figures of an alignment that a baseline keeps."""

from collections.abc import Iterator

from day0.artifacts.alignment import Alignment
from day0.artifacts.base import Record

# Half a unit in the last place of each dtype (IEEE 754, bfloat16), by its name in a gate's name.
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Roundings that may differ between two runs of the same arithmetic in another order: sums of a few hundred terms.
_FLOOR_ROUNDINGS = 8
# A precision bound is twice the reference's own error: half of it is as good as the reference, which is no regression.
_AS_GOOD = 0.5


class Figure(Record):
    """One error that should not grow: the worst over layers and prompts, and the gate's bound on it."""

    name: str
    error: float
    bound: float
    floor: float  # errors below it are rounding noise


class GreedyFigure(Record):
    """Whether a greedy continuation equalled the reference's, over how many tokens."""

    prompt: str
    tokens: int
    equal: bool


def figures(alignment: Alignment) -> dict[str, Figure]:
    """Every error of the alignment by its name, the worst of those that share one."""
    worst: dict[str, Figure] = {}
    for figure in _all(alignment):
        known = worst.get(figure.name)
        if known is None or figure.error > known.error:
            worst[figure.name] = figure
    return dict(sorted(worst.items()))


def greedy_figures(alignment: Alignment) -> dict[str, GreedyFigure]:
    """The greedy continuations by prompt."""
    return {c.prompt: GreedyFigure(prompt=c.prompt, tokens=c.tokens, equal=c.equal) for c in alignment.greedy}


def _all(alignment: Alignment) -> Iterator[Figure]:
    for row in alignment.rows:
        if row.error is None:
            continue
        name = f"{row.gate}/{row.mode}/{row.operator}.{row.port}"
        if row.ratio is None:
            yield Figure(name=name, error=row.error, bound=row.bound, floor=_floor(row.gate))
        else:
            # Layers differ in the reference's own error, which bounds theirs: only the share of it compares.
            yield Figure(name=f"{name} / bound", error=row.error / row.bound, bound=1.0, floor=_AS_GOOD)
    for cell in alignment.invariance:
        floor = _floor(cell.name)
        yield Figure(name=f"invariance/{cell.name}/logits", error=cell.error, bound=cell.bound, floor=floor)
        yield Figure(name=f"invariance/{cell.name}/state", error=cell.state_error, bound=cell.bound, floor=floor)


def _floor(name: str) -> float:
    """The rounding noise of a gate's dtype; of float64, the tightest, where its name says none."""
    named = [unit for dtype, unit in UNIT_ROUNDOFF.items() if dtype in name.split()]
    return _FLOOR_ROUNDINGS * (named[0] if named else UNIT_ROUNDOFF["float64"])
