"""day0 map: the kernel plan."""

from typing import Annotated, Any, Literal

import typer

from day0.cli.common import DeviceOption, Model, WorkspaceOption, command, warn_before
from day0.cli.output import Output


@command
def map_(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    device: DeviceOption = "cpu",
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"] | None,
        typer.Option(help="Dtype to run in; default: the checkpoint's where the device has it"),
    ] = None,
) -> None:
    """Choose a kernel for every operator and phase on a device, with reasons, and forecast the memory

    Example: day0 map demo --device h200
    """
    from day0.artifacts.plan import Plan
    from day0.pipeline import RunOptions, open_line

    line = open_line(repo, RunOptions(device=device, dtype=dtype), workspace)
    warn_before(out, line, "map")
    line.run_one("map")
    plan = Plan.read(line.workspace.folder)
    show(out, plan)
    out.document(plan.model_dump(mode="json"))
    if out.quiet:
        out.value(str(line.workspace.path("map")))


def show(out: Output, plan: Any) -> None:
    """The chosen kernels, tier, fusion, switches and memory."""
    from day0.cli.summary import memory_lines

    out.table(_rows(plan), title=f"{plan.model} on {plan.device['name']} in {plan.dtype}: tier {plan.tier}")
    out.line(f"tier {plan.tier}: {plan.tier_reason}")
    for refusal in dict.fromkeys(r for line in plan.lines for r in line.refusals):
        out.line(f"refused: {refusal}")
    for group in plan.fusion_groups:
        by = group.implementation or "no kernel computes it yet"
        out.line(f"fusion: {' + '.join(group.operators)}: {group.reason} ({by})")
    for switch in plan.switches:
        out.line(f"dense path: {switch.operator} while {switch.dense_while}: {switch.reason}")
    for text in memory_lines(plan.memory):
        out.line(text)
    for warning in plan.warnings:
        out.warn(warning)


def _rows(plan: Any) -> list[dict[str, Any]]:
    """One row per operator and choice: phases that share a choice share a row."""
    phases: dict[tuple[str, str, str, bool, str], list[str]] = {}
    for line in plan.lines:
        key = (line.operator, line.kind, line.implementation, line.fallback, line.reason)
        phases.setdefault(key, []).append(line.phase)
    return [
        {"operator": o, "kind": k, "phases": p, "implementation": i, "fallback": f, "reason": r}
        for (o, k, i, f, r), p in phases.items()
    ]
