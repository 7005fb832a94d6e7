"""day0 decompose: the operator inventory."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from day0.cli.common import Model, Revision, Trust, WorkspaceOption, check_trust, command, gate, name_kept_recipe
from day0.cli.output import Output, amount, ranges


@command
def decompose(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    recipe: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="Recipe, instead of the one found")] = None,
    trust_remote_code: Trust = None,
    require: Annotated[
        Literal["proved"] | None, typer.Option(help="proved: refuse operators that behaviour does not vouch for")
    ] = None,
    trust_recipe: Annotated[bool, typer.Option(help="Go on where behaviour contradicts the recipe")] = False,
    diff: Annotated[
        str | None, typer.Option(metavar="REPO|@REV", help="Show what differs in another repo, or revision of this one")
    ] = None,
    revision: Revision = None,
) -> None:
    """Take a model apart: its operators, how each is known, and what became of every config key and tensor

    Example: day0 decompose zai-org/GLM-5.3-Flash
    """
    from day0.artifacts.inventory import Inventory
    from day0.pipeline import RunOptions, inventory_changes, open_line

    options = RunOptions(
        recipe=recipe,
        trust=check_trust(trust_remote_code),
        require=require,
        trust_recipe=trust_recipe,
        revision=revision,
    )
    line = open_line(repo, options, workspace)
    name_kept_recipe(out, line)
    with out.progress(f"decompose {line.repo.name}"):
        line.run_one("decompose")
        changes = inventory_changes(line, diff) if diff else None
    inventory = Inventory.read(line.workspace.folder)
    if changes is None:
        show(out, inventory, line.repo.tensors)
        out.document(inventory.model_dump(mode="json"))
    else:
        out.table(changes, title=f"{inventory.model} -> {diff}")
        out.line(f"{len(changes)} differences")
        out.document({"model": inventory.model, "with": diff, "changes": changes})
    if out.quiet:
        out.value(str(line.workspace.path("decompose")))
    gate(inventory.verdict)


def show(out: Output, inventory: Any, tensors: Mapping[str, Any]) -> None:
    """The operator table, the audits, and the verdict. `tensors`: the checkpoint's headers by name."""
    out.table([_row(o) for o in inventory.operators], title=f"{inventory.model}: {inventory.layers} layers")
    if out.verbose:
        out.table([{"layer": i, "is": words} for i, words in enumerate(inventory.schedule)], title="schedule")
        out.table(
            [
                {"key": k.key, "value": str(k.value)[:60], "audit": k.audit, "read_by": k.read_by, "detail": k.detail}
                for k in inventory.config_audit
            ],
            title="config",
        )
        out.table([{"operators": f.operators, "why": f.reason} for f in inventory.fusions], title="fusion candidates")
    if not inventory.recipe:
        out.table(_tensor_rows(inventory, tensors if out.verbose else {}), title="tensors")
    else:
        out.line(_work(inventory.work))
    active = inventory.parameters_active
    per_token = "" if active is None else f", active per token: {amount(active)}"
    out.line(f"parameters: {amount(inventory.parameters)}{per_token}")
    out.line(f"reference: {_reference(inventory)}")
    out.line(f"config: {_config_audit(inventory)}")
    out.line(f"tensors: {_tensor_audit(inventory.tensor_audit)}")
    for warning in inventory.warnings:
        if warning not in inventory.faults:
            out.warn(warning)
    warn_of_faults(out, inventory)
    out.line(f"decompose {_said(inventory.verdict)}")


def warn_of_faults(out: Output, inventory: Any) -> None:
    """Say why an inventory does not hold, or decides nothing, also under -q."""
    for objection in inventory.objections:
        out.warn(objection)


def _said(verdict: str) -> str:
    return "is inconclusive" if verdict == "inconclusive" else verdict


def _tensor_rows(inventory: Any, each: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checkpoint's tensors, those of several layers in one row, or `each` of them where it is given."""
    if each:
        return [{"tensor": name, "shape": list(header.shape), "dtype": header.dtype} for name, header in each.items()]
    return [
        {
            "tensor": group.name,
            "shape": list(group.shape),
            "dtype": group.dtype,
            "layers": ranges(group.layers),
            "count": group.count,
            "module": group.operator,
        }
        for group in inventory.tensors
    ]


def _row(operator: Any) -> dict[str, Any]:
    paged = sum(c.entry_bytes(2) / c.tokens_per_entry for c in operator.state if c.role == "token_paged")
    fixed = sum(c.entry_bytes(2) for c in operator.state if c.role == "per_sequence")
    state = [f"{amount(paged)}B/token"] if paged else []
    state += [f"{amount(fixed)}B/sequence"] if fixed else []
    return {
        "operator": operator.name,
        "kind": operator.kind,
        "layers": ranges(operator.layers),
        "parameters": amount(operator.parameters),
        "state": ", ".join(state),
        "prefill": _cost(operator.prefill),
        "decode": _cost(operator.decode),
        # A contract covers the attributes that the recipe says, which are not those of a contradicted operator.
        "status": None if operator.evidence.established == "contradicted" else operator.status,
        "established": _established(operator.evidence),
    }


def _established(evidence: Any) -> str:
    """How an operator is known: what is proved with its error, what is contradicted with the attributes that are."""
    if evidence.established == "proved" and evidence.error is not None:
        return f"proved ({evidence.error:.0e})"
    return f"{evidence.established} ({', '.join(evidence.wrong)})" if evidence.wrong else str(evidence.established)


def _cost(cost: Any) -> str:
    return f"{amount(cost.flops)} / {amount(cost.bytes_read + cost.bytes_written)}B" if cost else ""


def _work(work: dict[str, dict[str, int]]) -> str:
    phases = []
    for phase, sizes in work.items():
        phases.append(f"{phase} of {', '.join(f'{count} {name}' for name, count in sizes.items())}")
    return f"FLOP / bytes of all layers: {'; '.join(phases)}"


def _reference(inventory: Any) -> str:
    reference = inventory.reference
    name = f"{reference.kind} {reference.class_name}".strip()
    return f"{name}, {reference.revision} {reference.hash[:12]}".strip(", ")


def _config_audit(inventory: Any) -> str:
    by_audit: dict[str, list[str]] = {}
    for key in inventory.config_audit:
        by_audit.setdefault(key.audit, []).append(key.key)
    parts = [f"{len(by_audit.get('consumed', []))} keys consumed"]
    parts += [f"{audit}: {', '.join(by_audit[audit])}" for audit in ("ignored", "contradicted") if audit in by_audit]
    return "; ".join(parts)


def _tensor_audit(audit: Any) -> str:
    parts = [f"{audit.claimed} claimed"]
    if audit.left_out_count:
        reasons = "; ".join(f"{pattern}: {reason}" for pattern, reason in audit.left_out.items())
        parts.append(f"{audit.left_out_count} left out ({reasons})")
    for what in ("unclaimed", "missing", "shape_mismatch"):
        names = getattr(audit, what)
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            parts.append(f"{what.replace('_', ' ')}: {', '.join(names[:5])}{more}")
    return "; ".join(parts)
