"""Does a run hold against its baseline: figure by figure, with a limit each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from day0.artifacts.alignment import Alignment, Verdict
from day0.check.baseline import Baseline, Entry, Key
from day0.check.figures import Figure, figures, greedy_figures

WORSE = 2.0  # errors of the same arithmetic in another order differ by less


@dataclass(frozen=True)
class Comparison:
    """One figure against its baseline. `limit` is what it may be at most; None where equality is asked for."""

    name: str
    baseline: float | str
    now: float | str
    limit: float | None
    verdict: Verdict
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """The answer of a check, and its parts."""

    verdict: Verdict
    detail: str
    comparisons: tuple[Comparison, ...]
    model: str
    conditions: tuple[str, ...]

    def failing(self) -> list[Comparison]:
        return [c for c in self.comparisons if c.verdict != "holds"]


def compare(alignment: Alignment, baseline: Baseline, *, stale: str = "") -> Report:
    """Hold an alignment's figures to a baseline. `stale`: why the alignment is out of date, which decides nothing.

    A figure holds while it is at most max(2 x baseline, its rounding floor) and within its gate's bound; a greedy
    continuation that equalled the reference's has to equal it still.
    """
    key = Key.of(alignment.produced_by)
    entry = baseline.entry_for(key)
    if stale:
        return _undecided(alignment, f"align.json is out of date: {stale}")
    if entry is None:
        return _undecided(alignment, _why_none(key, baseline))
    gates, errors, greedy = tuple(_gates(alignment)), tuple(_errors(alignment, entry)), tuple(_greedy(alignment, entry))
    comparisons = (*gates, *errors, *greedy)
    verdict = worst_verdict([c.verdict for c in comparisons])
    failing = [c.name for c in comparisons if c.verdict == verdict]
    detail = counted(len(gates), len(errors), len(greedy))
    if verdict != "holds":
        detail = f"{len(failing)} of {detail}, first {failing[0]}"
    if entry.key.kernel_set != key.kernel_set:
        detail += "; the kernels changed since the baseline"
    return Report(verdict, detail, comparisons, alignment.model, alignment.conditions)


def counted(gates: int, figures: int, continuations: int) -> str:
    """What a baseline holds a run to, in words."""
    counts = {"gate": gates, "figure": figures, "continuation": continuations}
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items())


def worst_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """One failure fails all; without one, one undecided leaves all undecided."""
    for verdict in ("does not hold", "inconclusive"):
        if verdict in verdicts:
            return verdict
    return "holds"


def _gates(alignment: Alignment) -> Iterator[Comparison]:
    for gate in alignment.gates:
        yield Comparison(f"gate {gate.name}", "holds", gate.verdict, None, gate.verdict, gate.detail)


def _errors(alignment: Alignment, entry: Entry) -> Iterator[Comparison]:
    now = figures(alignment)
    for name, was in entry.figures.items():
        if name in now:
            yield _error(name, was, now[name])
        else:
            yield Comparison(name, was.error, "not measured", None, "inconclusive", "the baseline has it, this run not")


def _error(name: str, was: Figure, now: Figure) -> Comparison:
    limit = min(max(WORSE * was.error, now.floor), now.bound)
    holds = now.error <= limit
    detail = "" if holds else f"{now.error:.3g} is above {limit:.3g}"
    return Comparison(name, was.error, now.error, limit, "holds" if holds else "does not hold", detail)


def _greedy(alignment: Alignment, entry: Entry) -> Iterator[Comparison]:
    now = greedy_figures(alignment)
    for prompt, was in entry.greedy.items():
        name = f"greedy/{prompt}"
        if prompt not in now or now[prompt].tokens < was.tokens:
            yield Comparison(name, _words(was.equal), "not measured", None, "inconclusive", f"over {was.tokens} tokens")
        else:
            holds = now[prompt].equal or not was.equal
            verdict: Verdict = "holds" if holds else "does not hold"
            yield Comparison(name, _words(was.equal), _words(now[prompt].equal), None, verdict)


def _words(equal: bool) -> str:
    return "equal" if equal else "differs"


def _undecided(alignment: Alignment, why: str) -> Report:
    return Report("inconclusive", why, (), alignment.model, alignment.conditions)


def _why_none(key: Key, baseline: Baseline) -> str:
    """Why no entry is comparable: what differs from the nearest one."""
    nearest = min((key.differences(entry.key) for entry in baseline.entries), key=len, default=["everything"])
    return f"the baseline has no figures for this run: {', '.join(nearest)} differ"
