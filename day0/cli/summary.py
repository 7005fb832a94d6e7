"""What each stage found, in one line: the table that ends a run."""

from collections import Counter
from pathlib import Path
from typing import Any

from day0.artifacts.alignment import Alignment
from day0.artifacts.inventory import Inventory
from day0.artifacts.plan import NOTHING, MemoryForecast, Plan
from day0.cli.output import amount
from day0.pipeline import Line, Outcome
from day0.workspace import STAGES, Stage


def stage_rows(line: Line, outcome: Outcome) -> list[dict[str, Any]]:
    """One row per stage up to where the run stopped: whether it ran, its verdict, its finding, what it wrote."""
    done = [stage for stage in STAGES if stage in (*outcome.ran, *outcome.reused)]
    verdicts = {state.stage: state.verdict for state in line.workspace.states()}
    return [
        {
            "stage": stage,
            "did": "ran" if stage in outcome.ran else "reused",
            "verdict": verdicts[stage],
            "found": _found(line, stage),
            "wrote": str(_written(line, stage)),
        }
        for stage in done
    ]


def _written(line: Line, stage: Stage) -> Path:
    path = line.workspace.path(stage)
    return path.parent if stage == "generate" else path


def _found(line: Line, stage: Stage) -> str:
    folder = line.workspace.folder
    if stage == "decompose":
        return inventory_words(Inventory.read(folder))
    if stage == "map":
        return plan_words(Plan.read(folder))
    if stage == "generate":
        package = line.package()
        labels = f"; {', '.join(package.labels)}" if package.labels else ""
        return f"model.py of {package.files['model.py']} lines{labels}"
    return alignment_words(Alignment.read(folder))


def inventory_words(inventory: Inventory) -> str:
    established = Counter(operator.evidence.established for operator in inventory.operators)
    ways = ", ".join(f"{count} {how}" for how, count in established.most_common())
    kinds = len({operator.kind for operator in inventory.operators})
    return f"{len(inventory.operators)} operators of {kinds} kinds in {inventory.layers} layers: {ways}"


def plan_words(plan: Plan) -> str:
    fallback = {line.operator for line in plan.lines if line.fallback}
    nothing = {line.operator for line in plan.lines if line.implementation == NOTHING}
    uncomputed = f", {len(nothing)} that nothing computes" if nothing else ""
    return (
        f"tier {plan.tier} on {plan.device['device']} in {plan.dtype}; {len(fallback)} operators on fallback"
        f"{uncomputed}; {_fits(plan.memory)}: weights {amount(plan.memory.weights_bytes)}B"
    )


def memory_lines(memory: MemoryForecast) -> list[str]:
    """The memory forecast in lines: what it takes, what fits, and how that was computed."""
    of_device = f"of {amount(memory.device_bytes)}B"
    weights = f"memory: {_fits(memory)}; weights {amount(memory.weights_bytes)}B"
    how = f"how: {memory.formula}"
    if not memory.known:
        return [f"{weights}, {of_device}; what a token and a sequence take is not known", how]
    longest = "unbounded" if memory.longest_context is None else f"{memory.longest_context} tokens"
    counts = ", ".join(f"{count} of {context}" for context, count in memory.sequences_at.items())
    return [
        f"{weights}, {amount(memory.kv_bytes_per_token)}B a token, {amount(memory.state_bytes_per_sequence)}B a "
        f"sequence, workspace {amount(memory.workspace_bytes)}B, {of_device}",
        f"longest context: {longest}; sequences that fit: {counts or 'any number'}",
        how,
    ]


def _fits(memory: MemoryForecast) -> str:
    return {True: "fits", False: "does not fit", None: "the weights fit"}[memory.fits]


def alignment_words(alignment: Alignment) -> str:
    held = sum(gate.verdict == "holds" for gate in alignment.gates)
    conditions = f"; {', '.join(alignment.conditions)}" if alignment.conditions else ""
    return f"{held} of {len(alignment.gates)} gates hold{conditions}"
