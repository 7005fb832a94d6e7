"""From rows and cells to verdicts, and which rows align.json keeps."""

from collections.abc import Iterable, Sequence

from day0.align.exactness import Exactness
from day0.align.precision import Precision
from day0.artifacts.alignment import Gate, GreedyCell, InvarianceCell, MatrixCell, Row, SelfCheck, Verdict

_MOST_FAILING_ROWS = 200


def overall(gates: Iterable[Gate]) -> Verdict:
    """The worst verdict: one gate that does not hold decides, then one that is inconclusive."""
    return _worst_verdict(gate.verdict for gate in gates)


def _worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    if "does not hold" in found:
        return "does not hold"
    return "inconclusive" if "inconclusive" in found or not found else "holds"


def exactness_gate(name: str, result: Exactness) -> Gate:
    detail = f"{len(result.rows)} tensors in float64"
    bad = next((row for row in result.rows if row.verdict != "holds"), None)
    if bad is not None:
        named = result.first_bad or next(iter(result.also_bad), None)
        # Where no operator is named, as when layers are compared whole, the first tensor that differs says most.
        wrong = bad.note if bad.error is None else f"relative error {bad.error:.2e}"
        detail = str(named) if named else f"{_where(bad)}: {wrong}"
    return _gate(name, [row.verdict for row in result.rows], detail, _worst(result.rows))


def rows_gate(name: str, rows: Sequence[Row], against: str) -> Gate:
    """Rows compared with `against`, and the first that fails."""
    bad = next((row for row in rows if row.verdict != "holds"), None)
    detail = f"{len(rows)} tensors against {against}"
    if bad is not None:
        figures = f"has error {bad.error:.2e}, bound {bad.bound:.2e}, against {against}"
        detail = f"{_where(bad)} ({bad.prompt}, {bad.mode}) {figures}"
    return _gate(name, [row.verdict for row in rows], detail, _worst(rows))


def precision_gate(name: str, result: Precision) -> Gate:
    moved = sum(u.package for u in result.unstable)
    detail = f"{len(result.rows)} tensors, errors up to {_worst_ratio(result.rows):.2f} times the reference's own"
    if moved or any(u.reference for u in result.unstable):
        by_reference = sum(u.reference for u in result.unstable)
        detail += (
            f"; rows on a tie left out: {by_reference} that the reference moves, {moved} that only the package does"
        )
    if result.lost:
        shown = ", ".join(sorted(result.lost)[:3])
        detail += f"; not compared, the reference holds them in float64 only: {len(result.lost)} ({shown})"
    bad = next((row for row in result.rows if row.verdict != "holds"), None)
    if bad is not None:
        why = bad.note or f"{bad.ratio or 0.0:.2f} times the reference's own error"
        detail = f"{_where(bad)} ({bad.mode}): {why}; {detail}"
    return _gate(name, [row.verdict for row in result.rows], detail, _worst(result.rows))


def greedy_gate(name: str, cells: Sequence[GreedyCell]) -> Gate:
    """Equal continuations hold, and so do those that part at ties only, beside one that is equal to its end.

    Where every continuation meets a tie, what was compared is too near to noise to decide: inconclusive.
    """
    equal = sum(cell.equal for cell in cells)
    bugs = [cell for cell in cells if cell.classified == "bug"]
    ties = [f"{cell.prompt} at token {', '.join(map(str, cell.ties))}" for cell in cells if cell.classified == "tie"]
    lengths = max((cell.tokens for cell in cells), default=0)
    detail = f"{equal} of {len(cells)} prompts equal for {lengths} tokens"
    if ties:
        detail += f"; {len(ties)} part at a tie and are equal elsewhere: {'; '.join(ties)}"
    if bugs:
        first = bugs[0]
        detail = (
            f"{first.prompt} parts at token {first.first_difference}: margin {first.reference_margin:.2e} in the "
            f"reference, {first.package_margin:.2e} in the package, noise {first.noise:.2e}"
        )
    gate = _gate(name, ["does not hold" if cell.classified == "bug" else "holds" for cell in cells], detail, None)
    return gate.model_copy(update={"verdict": "inconclusive"}) if not bugs and not equal else gate


def invariance_gate(name: str, cells: Sequence[InvarianceCell]) -> Gate:
    failing = [cell for cell in cells if cell.verdict != "holds"]
    detail = f"{len(cells)} ways of running the same tokens, logits and state"
    if failing:
        detail = f"{', '.join(cell.name for cell in failing)}: worst state {failing[0].worst_state or 'none'}"
    worst = max((max(cell.error, cell.state_error) / cell.bound for cell in cells), default=None)
    return _gate(name, [cell.verdict for cell in cells], detail, worst)


def matrix_gate(name: str, cells: Sequence[MatrixCell]) -> Gate:
    failing = [cell for cell in cells if cell.verdict != "holds"]
    exact = sum(cell.bit_exact is True for cell in cells)
    detail = f"{len(cells)} meetings of the engine's features, tokens and state; {exact} of them bit-exact"
    if failing:
        detail = f"{len(failing)} of {len(cells)} meetings; first: {failing[0].name}: {failing[0].detail}"
    return _gate(name, [cell.verdict for cell in cells], detail, max((c.worst_ratio for c in cells), default=None))


def self_gate(name: str, checks: Sequence[SelfCheck]) -> Gate:
    """A failing check that the recipe declares is an exclusion; an undeclared one leaves the comparison in doubt."""
    failing = [check for check in checks if not check.holds]
    surprising = [check for check in failing if not check.declared]
    detail = "agrees with itself: cached decode, chunked prefill"
    if failing:
        detail = "fails " + ", ".join(f"{check.name} in {check.dtype}" for check in failing)
        detail += "" if surprising else ", as its recipe says"
    if surprising and surprising[0].detail:
        detail += f": {surprising[0].detail}"
    return Gate(
        name=name,
        verdict="inconclusive" if surprising else "holds",
        detail=detail,
        checked=len(checks),
        failing=len(failing),
        worst=None,
    )


def kept_rows(rows: Iterable[Row]) -> list[Row]:
    """Per gate, mode, operator and port the worst row, and the first failing rows up to a limit, in their order."""
    rows = list(rows)
    worst: dict[tuple[str, str, str, str], int] = {}
    for number, row in enumerate(rows):
        key = (row.gate, row.mode, row.operator, row.port)
        if key not in worst or _share(row) > _share(rows[worst[key]]):
            worst[key] = number
    failing = [number for number, row in enumerate(rows) if row.verdict != "holds"][:_MOST_FAILING_ROWS]
    return [rows[number] for number in sorted({*worst.values(), *failing})]


def _where(row: Row) -> str:
    return " ".join(filter(None, (row.operator, "" if row.layer is None else str(row.layer), row.port)))


def _gate(name: str, verdicts: Sequence[Verdict], detail: str, worst: float | None) -> Gate:
    failing = sum(verdict != "holds" for verdict in verdicts)
    verdict = _worst_verdict(verdicts)
    return Gate(name=name, verdict=verdict, detail=detail, checked=len(verdicts), failing=failing, worst=worst)


def _share(row: Row) -> float:
    """How much of its bound a row uses."""
    return (row.error or 0.0) / row.bound if row.verdict == "holds" else float("inf")


def _worst(rows: Iterable[Row]) -> float | None:
    return max((row.error / row.bound for row in rows if row.error is not None), default=None)


def _worst_ratio(rows: Iterable[Row]) -> float:
    return max((row.ratio for row in rows if row.ratio is not None), default=0.0)
