"""A check as Markdown, for a CI job's summary."""

from day0.check.compare import Comparison, Report


def markdown(report: Report) -> str:
    """Verdict, conditions, and a table of what does not hold or is undecided, else of the largest shares of a limit."""
    lines = [f"## day0 check: {report.model}: {report.verdict}", "", report.detail, ""]
    if report.conditions:
        lines += [f"Conditions: {', '.join(report.conditions)}", ""]
    failing = report.failing()
    shown = failing or sorted(report.comparisons, key=_share, reverse=True)[:10]
    if shown:
        lines += ["| figure | baseline | now | limit | verdict |", "|---|---|---|---|---|"]
        lines += [_row(comparison) for comparison in shown]
    return "\n".join(lines) + "\n"


def _row(c: Comparison) -> str:
    cells = (c.name, _cell(c.baseline), _cell(c.now), "-" if c.limit is None else f"{c.limit:.3g}", c.verdict)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def _share(c: Comparison) -> float:
    """How much of its limit a figure uses; 0 where there is none."""
    return c.now / c.limit if c.limit and isinstance(c.now, float) else 0.0
