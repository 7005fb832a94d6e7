"""day0 check: hold a run's figures to a baseline."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from day0.cli.common import Model, WorkspaceOption, check_output, command, gate
from day0.cli.output import Output

if TYPE_CHECKING:
    from day0.check.compare import Report


@command
def check(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    store: Annotated[bool, typer.Option("--store", help="Store this run's figures as the baseline")] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Baseline file (default: baseline.json in the workspace)")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a Markdown summary")] = None,
) -> None:
    """Compare the figures of align with a stored baseline: exit 0 holds, 1 does not hold, 3 inconclusive

    The summary also goes to the file that $GITHUB_STEP_SUMMARY names, where it is set.

    Example: day0 check demo --store; day0 check demo --junit check.xml
    """
    from day0.artifacts.alignment import Alignment
    from day0.check.compare import counted
    from day0.pipeline import RunOptions, check, open_line, store_baseline

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    for written in (junit, markdown, Path(summary) if summary else None, baseline if store else None):
        check_output(written)
    line = open_line(repo, RunOptions(), workspace)
    path = baseline or line.workspace.folder / "baseline.json"
    if store:
        stored = store_baseline(line, path)
        gates = len(Alignment.read(line.workspace.folder).gates)
        out.note(f"stored {counted(gates, len(stored.figures), len(stored.greedy))}")
        out.document(stored.model_dump(mode="json"))
        out.value(str(path))
        return
    report = check(line, path)
    _write_reports(report, junit, markdown, summary)
    rows = [
        {
            "figure": c.name,
            "baseline": c.baseline,
            "now": c.now,
            "limit": c.limit,
            "verdict": c.verdict,
            "why": c.detail,
        }
        for c in report.comparisons
    ]
    shown = rows if out.verbose else [row for row in rows if row["verdict"] != "holds"]
    out.table(shown, title=f"{report.model}: figures" if out.verbose else f"{report.model}: not holding")
    out.line(f"check {report.verdict}: {report.detail}")
    for condition in report.conditions:
        out.warn(f"made with {condition}")
    out.document({"verdict": report.verdict, "detail": report.detail, "conditions": report.conditions, "figures": rows})
    gate(report.verdict)


def _write_reports(report: "Report", junit: Path | None, markdown: Path | None, summary: str | None) -> None:
    from day0.artifacts.base import write_atomically
    from day0.check.junit import junit_xml
    from day0.check.markdown import markdown as to_markdown

    if junit is not None:
        write_atomically(junit, junit_xml(report).encode())
    if markdown is not None:
        write_atomically(markdown, to_markdown(report).encode())
    if summary:
        with open(summary, "a", encoding="utf-8") as file:
            file.write(to_markdown(report))
