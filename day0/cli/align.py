"""day0 align: package against reference."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from day0.cli.common import Model, Trust, WorkspaceOption, check_trust, command, gate, warn_before
from day0.cli.output import Output


@command
def align(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    trust_remote_code: Trust = None,
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="TEXT", help="A further prompt; repeatable")
    ] = None,
    greedy_tokens: Annotated[int, typer.Option(min=1, help="Length of the greedy continuations")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Draws the random prompts")] = 0,
    golden: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, help="Compare with this recording, not the reference")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="One layer at a time, exactness only: for models larger than the memory")
    ] = False,
    matrix: Annotated[
        Literal["few", "all"] | None,
        typer.Option(help="The engine's features against each other, too: cells that hold any two, or all cells"),
    ] = None,
) -> None:
    """Compare the package with the reference: operators, layers, logits, greedy continuation, ways of running

    Example: day0 align demo
    """
    from day0.artifacts.alignment import Alignment
    from day0.pipeline import RunOptions, open_line

    options = RunOptions(
        trust=check_trust(trust_remote_code),
        texts=tuple(text or ()),
        greedy_tokens=greedy_tokens,
        seed=seed,
        golden=golden,
        stream=stream,
        matrix=matrix,
    )
    line = open_line(repo, options, workspace)
    warn_before(out, line, "align")
    with out.progress(f"align {line.repo.name}") as say:
        verdict = line.run_one("align", say)
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
    cells = alignment.matrix if out.verbose else [c for c in alignment.matrix if c.verdict != "holds"]
    out.table(
        [
            {"cell": c.name, "tokens": c.tokens_equal, "bit_exact": c.bit_exact, "worst/bound": c.worst_ratio}
            | {"verdict": c.verdict, "detail": c.detail}
            for c in cells
        ],
        title="the engine's features together" if out.verbose else "not equal to the plain run",
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
    for g in alignment.gates:
        if g.verdict != "holds":
            out.warn(f"align {g.verdict}: {g.name}: {g.detail}")
    for exclusion in alignment.exclusions:
        out.warn(f"not compared: {exclusion.cell}: {exclusion.reason}")
    for warning in alignment.warnings:
        out.warn(warning)
    out.line(f"align {alignment.holds}")
