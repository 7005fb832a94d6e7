"""The stage: a model repo -> inventory.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from day0.artifacts.base import Provenance
from day0.artifacts.inventory import ConfigKey, Inventory, Operator, Reference, TensorAudit
from day0.artifacts.provenance import package_versions
from day0.decompose.config_audit import audit_config
from day0.decompose.dataflow import dataflow, fusion_candidates
from day0.decompose.look import Seen, look
from day0.decompose.operators import DECODE, PREFILL, active_parameters, operator_records, weights_dtype
from day0.decompose.structure import Structure, read_source
from day0.decompose.tensor_audit import TensorEvidence, audit_tensors
from day0.decompose.tie import tie_fault
from day0.decompose.unknown import (
    Owners,
    audit_of,
    operators_of_source,
    operators_of_structure,
    owners_of,
    tensor_groups,
)
from day0.errors import Day0Error
from day0.language.program import apply_recipe
from day0.language.recipe import find_recipe, load_recipe
from day0.repo.model_repo import ModelRepo
from day0.repo.reference_source import ReferenceSource, find_reference_source

NO_RECIPE = "no recipe covers the model: its operators are modules of the reference, not known computations"


@dataclass(frozen=True)
class Options:
    """`recipe`: a name or a file, instead of the one that matches. `trust`: how the repo's own code may run.

    `require` "proved" does not hold where an operator is known from the recipe only. `trust_recipe` holds in spite of
    contradictions by behaviour. `seed` makes the shrunk reference's weights and the probes' tokens.
    """

    recipe: str | None = None
    trust: Literal["sandboxed", "unsandboxed"] | None = None
    require: Literal["proved"] | None = None
    trust_recipe: bool = False
    seed: int = 0


def run(repo: ModelRepo, options: Options, produced_by: Provenance) -> Inventory:
    """Take the model apart. Reads config, headers and the reference; never a weight.

    Raises Day0Error: no usable config, a recipe that does not fit it, a broken header, neither recipe nor reference.
    """
    recipe = load_recipe(options.recipe) if options.recipe else find_recipe(repo.config)
    program = apply_recipe(recipe, repo.config, repo.tensors) if recipe is not None else None
    source = find_reference_source(repo)
    if recipe is None:
        _require_something_to_read(source, options)
    seen = look(repo, source, recipe, trust=options.trust, seed=options.seed)
    owners = owners_of(seen.structure, repo.tensors) if program is None else {}
    if program is not None:
        tensors = audit_tensors(program, repo.tensors)
    else:
        tensors = TensorEvidence(audit_of(owners, repo.tensors))
    tie = tie_fault(repo, program) if program is not None else ("", True)
    keys, warnings = audit_config(repo.config, program, reference=seen.config, mismatches=tensors.mismatches, tie=tie)
    dtype = weights_dtype(repo.tensors.values(), repo.config)
    proofs = seen.behaviour.proofs if seen.behaviour is not None else {}
    if program is not None:
        links = dataflow(program)
        operators = operator_records(program, links, proofs, repo.tensors, dtype)
        fusions = fusion_candidates(program, links)
    else:
        operators, fusions = _unknown_operators(repo, source, seen, dtype, owners), []
    counted = sum(o.parameters for o in operators)
    warnings = [*seen.warnings, *warnings]
    if program is not None:
        warnings += _parameter_warnings(counted, seen.structure)
    warnings += _tensor_warnings(repo, tensors)
    if recipe is not None and recipe.reference.float64_leak > 0:
        leak = recipe.reference.float64_leak
        warnings.append(f"values count as equal up to {leak:.1e}, which the recipe says the reference's float64 leaves")
    faults = _faults(operators, keys, tensors.audit, options, recipe=recipe is not None)
    undecided = () if recipe is not None else (NO_RECIPE,)
    contradictions = [o.evidence.contradiction for o in operators if o.evidence.contradiction]
    return Inventory(
        produced_by=produced_by,
        model=repo.name,
        source=repo.source,
        model_hash=repo.hash,
        recipe=recipe.recipe if recipe is not None else "",
        reference=_reference(repo, source, seen),
        config=program.config if program is not None else dict(repo.config),
        layers=len(program.layers) if program is not None else _layers(seen),
        schedule=tuple(layer.describe() for layer in program.layers) if program is not None else (),
        parameters=seen.structure.parameters if seen.structure is not None else counted,
        parameters_active=active_parameters(program) if program is not None else None,
        weights_dtype=dtype,
        operators=tuple(operators),
        config_audit=tuple(keys),
        tensor_audit=tensors.audit,
        tensors=tuple(tensor_groups(repo.tensors, owners)) if program is None else (),
        fusions=tuple(fusions),
        work={"prefill": PREFILL, "decode": DECODE},
        warnings=tuple(warnings + contradictions),
        faults=tuple(faults),
        undecided=undecided,
        holds=not faults and not undecided,
    )


def _require_something_to_read(source: ReferenceSource, options: Options) -> None:
    """Raises Day0Error where, without a recipe, no reference can be asked either: nothing would be known."""
    if source.kind == "none":
        unknown = f"model type {source.model_type!r}" if source.model_type is not None else "the model's type"
        raise Day0Error(
            f"{unknown} is unknown: no recipe covers it, and {source.reason}",
            hint="install a transformers that has it (pip install --upgrade transformers), or give --recipe FILE",
        )
    if source.kind == "remote_code" and options.trust is None:
        files = ", ".join(path for path, _ in source.module_files)
        raise Day0Error(
            f"no recipe covers model type {source.model_type!r}, and its only reference is the repo's own code, "
            f"which is not trusted ({files}; SHA-256 {source.revision_hash})",
            hint="read that code, then let it run in a sandbox with --trust-remote-code; or give --recipe FILE",
        )


def _unknown_operators(
    repo: ModelRepo, source: ReferenceSource, seen: Seen, dtype: str, owners: Owners
) -> list[Operator]:
    if seen.structure is not None:
        functions = seen.behaviour.functions if seen.behaviour is not None else ()
        if functions:
            seen.warnings.append(f"functions of the reference to be explained: {'; '.join(functions[:40])}")
        ports = seen.behaviour.ports if seen.behaviour is not None else {}
        return operators_of_structure(seen.structure, dtype, ports, owners)
    return operators_of_source(read_source(source, repo))


def _reference(repo: ModelRepo, source: ReferenceSource, seen: Seen) -> Reference:
    name = seen.structure.class_name if seen.structure is not None else source.class_name
    return Reference(
        kind=source.kind,
        class_name=name or "",
        revision=_revision(repo, source),
        hash=source.revision_hash,
    )


def _revision(repo: ModelRepo, source: ReferenceSource) -> str:
    """The version of transformers, or the commit of the repo whose own code it is ("" for a folder)."""
    if source.kind == "transformers":
        return package_versions()["transformers"]
    return repo.revision or "" if source.kind == "remote_code" else ""


def _layers(seen: Seen) -> int:
    return int(seen.config.text.get("num_hidden_layers") or 0) if seen.config is not None else 0


def _parameter_warnings(counted: int, structure: Structure | None) -> list[str]:
    if structure is None or counted in (structure.parameters, structure.saved):
        return []
    return [
        f"the operators' weights hold {counted} numbers, the reference {structure.parameters} parameters "
        f"and {structure.saved} with its saved buffers"
    ]


def _tensor_warnings(repo: ModelRepo, tensors: TensorEvidence) -> list[str]:
    if not repo.tensors:
        return ["the repo has no weights: its tensors were not audited"]
    return _tensor_faults(tensors.audit)


def _tensor_faults(audit: TensorAudit) -> list[str]:
    """What is wrong with the tensors, one line for each way to be wrong."""
    return [
        f"{what}: {_first(names)}"
        for what, names in (
            ("tensors missing from the checkpoint", audit.missing),
            ("tensors of another shape than the recipe says", audit.shape_mismatch),
            ("tensors in no operator", audit.unclaimed),
        )
        if names
    ]


def _faults(
    operators: Sequence[Operator], keys: Sequence[ConfigKey], audit: TensorAudit, options: Options, *, recipe: bool
) -> list[str]:
    """What keeps the inventory from holding, a line each; nothing found is nothing shown."""
    faults = [] if operators else ["no operator was found"]
    if recipe:
        faults += _tensor_faults(audit)
    unproved = [o.name for o in operators if o.evidence.established != "proved"]
    if options.require == "proved" and unproved:
        faults.append(f"operators not proved: {_first(unproved)}")
    if not options.trust_recipe:
        faults += [o.evidence.contradiction for o in operators if o.evidence.contradiction]
        faults += [f"config key {key.key}: {key.detail}" for key in keys if key.audit == "contradicted"]
    return faults


def _first(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
