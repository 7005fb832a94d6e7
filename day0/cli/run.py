"""day0 run: the whole line."""

from typing import Annotated, Literal

import typer

from day0.cli.common import (
    DeviceOption,
    Model,
    Revision,
    Trust,
    WorkspaceOption,
    check_trust,
    command,
    gate,
    name_kept_recipe,
)
from day0.cli.output import Output


@command
def run(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    start: Annotated[
        Literal["decompose", "map", "generate", "align"] | None,
        typer.Option("--from", metavar="STAGE", help="Run this stage and all after it, fresh or not"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and why, and run nothing")] = False,
    device: DeviceOption = "cpu",
    recipe: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="Recipe, instead of the one found")] = None,
    trust_remote_code: Trust = None,
    require: Annotated[
        Literal["proved"] | None, typer.Option(help="proved: refuse operators that behaviour does not vouch for")
    ] = None,
    trust_recipe: Annotated[bool, typer.Option(help="Go on where behaviour contradicts the recipe")] = False,
    layers: Annotated[int | None, typer.Option(min=1, help="Only the first layers; every figure says so")] = None,
    dummy_weights: Annotated[bool, typer.Option(help="Random weights; every figure says so")] = False,
    force: Annotated[bool, typer.Option(help="Overwrite a package that was edited")] = False,
    revision: Revision = None,
) -> None:
    """Run decompose, map, generate and align on a model, from the first stage whose inputs changed

    Stops at the first gate that does not hold.

    Example: day0 run demo
    """
    from day0.artifacts.alignment import Alignment
    from day0.artifacts.inventory import Inventory
    from day0.artifacts.plan import Plan
    from day0.cli.align import show as show_alignment
    from day0.cli.decompose import warn_of_faults
    from day0.cli.summary import stage_rows
    from day0.pipeline import RunOptions, open_line

    options = RunOptions(
        device=device,
        recipe=recipe,
        trust=check_trust(trust_remote_code),
        require=require,
        trust_recipe=trust_recipe,
        layers=layers,
        dummy_weights=dummy_weights,
        force=force,
        revision=revision,
    )
    line = open_line(repo, options, workspace)
    folder = line.workspace.folder
    name_kept_recipe(out, line)
    if dry_run:
        steps = [{"stage": stage, "would": would, "why": why} for stage, would, why in line.dry_run(start)]
        out.table(steps)
        out.document({"workspace": str(folder), "stages": steps})
        return
    outcome = line.run(start=start, progress=out.progress)
    rows = stage_rows(line, outcome)
    done = (*outcome.ran, *outcome.reused)
    if "decompose" == outcome.stopped_at:
        warn_of_faults(out, Inventory.read(folder))
    if "map" in done:
        for warning in Plan.read(folder).warnings:
            out.warn(warning)
    if "align" in done:
        show_alignment(out, Alignment.read(folder))
    out.table(rows, title=f"{line.repo.name}: {outcome.verdict}")
    out.document(
        {
            "workspace": str(folder),
            "verdict": outcome.verdict,
            "stopped_at": outcome.stopped_at,
            "why": outcome.why,
            "stages": rows,
        }
    )
    if out.quiet:
        out.value(str(folder))
    if outcome.stopped_at:
        out.warn(f"stopped at {outcome.stopped_at}: {outcome.verdict}")
    gate(outcome.verdict)
