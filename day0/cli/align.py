"""day0 align: package against reference."""

from typing import Any

from day0.cli.common import Model, Trust, WorkspaceOption, check_trust, command, gate
from day0.cli.output import Output


@command
def align(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    trust_remote_code: Trust = None,
) -> None:
    """Compare the package with the reference: operators, layers, logits, greedy continuation, ways of running

    Example: day0 align demo
    """
    from day0.artifacts.alignment import Alignment
    from day0.pipeline import RunOptions, open_line

    line = open_line(repo, RunOptions(trust=check_trust(trust_remote_code)), workspace)
    with out.progress(f"align {line.repo.name}"):
        verdict = line.run_one("align")
    alignment = Alignment.read(line.workspace.folder)
    show(out, alignment)
    out.document(alignment.model_dump(mode="json"))
    if out.quiet:
        out.value(str(line.workspace.path("align")))
    gate(verdict)


def show(out: Output, alignment: Any) -> None:
    """The gates, what fails, and the first operator that does."""
    for condition in alignment.conditions:
        out.warn(f"made with {condition}")
    rows = [
        {
            "gate": g.name,
            "verdict": g.verdict,
            "checked": g.checked,
            "failing": g.failing,
            "worst/bound": g.worst,
            "detail": g.detail,
        }
        for g in alignment.gates
    ]
    out.table(rows, title=f"{alignment.model}: package against reference")
    out.table(
        [
            {
                "greedy": c.prompt,
                "tokens": c.tokens,
                "is": c.classified,
                "differs_at": c.first_difference,
                "package_margin": c.package_margin,
                "reference_margin": c.reference_margin,
            }
            for c in alignment.greedy
        ]
    )
    out.table(
        [
            {
                "check": c.name,
                "dtype": c.dtype,
                "holds": c.holds,
                "error": c.error,
                "bound": c.bound,
                "declared": c.declared,
            }
            for c in alignment.self_checks
        ],
        title="the reference against itself",
    )
    worst = alignment.rows if out.verbose else [row for row in alignment.rows if row.verdict != "holds"]
    out.table(
        [
            {
                "gate": r.gate,
                "mode": r.mode,
                "layer": r.layer,
                "operator": r.operator,
                "port": r.port,
                "error": r.error,
                "bound": r.bound,
                "verdict": r.verdict,
                "note": r.note,
            }
            for r in worst
        ],
        title="worst tensors" if out.verbose else "not holding",
    )
    if alignment.first_bad:
        out.line(f"first operator that differs: {alignment.first_bad}")
    for exclusion in alignment.exclusions:
        out.warn(f"not compared: {exclusion.cell}: {exclusion.reason}")
    for warning in alignment.warnings:
        out.warn(warning)
    out.line(f"align {alignment.holds}")
