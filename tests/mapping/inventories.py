"""Inventories made without decompose: a recipe applied to a config, or single operators written out."""

from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Evidence, Inventory, Operator, Reference, TensorAudit
from day0.kernels.registry import get_kind, kind_names
from day0.language.program import apply_recipe
from day0.language.recipe import find_recipe

PRODUCED_BY = Provenance(day0_version="0", model_hash="0" * 64)
EVIDENCE = Evidence(established="declared", detail="test")


def operator(name, kind, attributes, layers=(), status="reuse", **fields):
    """An operator with the state that its kind declares."""
    if kind in kind_names() and status != "new" and "state" not in fields:
        fields["state"] = get_kind(kind).state(get_kind(kind).parse(attributes))
    return Operator(
        name=name,
        block="test",
        kind=kind,
        attributes=attributes,
        layers=layers,
        status=status,
        evidence=EVIDENCE,
        **fields,
    )


def inventory(operators, *, dtype="bfloat16", config=None, recipe="test", **fields):
    return Inventory(
        produced_by=PRODUCED_BY,
        model="tiny",
        source="tiny",
        model_hash="0" * 64,
        recipe=recipe,
        reference=Reference(kind="none"),
        config=config or {},
        layers=1,
        schedule=("test",),
        parameters=0,
        weights_dtype=dtype,
        operators=tuple(operators),
        tensor_audit=TensorAudit(claimed=0),
        **fields,
    )


def inventory_of_config(config, **fields):
    """Every operator that the shipped recipe gives for a config, declared."""
    program = apply_recipe(find_recipe(config), config)
    uses = {}
    for use in program.uses():
        uses.setdefault((use.name, use.kind, use.attributes), []).append(use)
    operators = [
        operator(name, kind, attributes.model_dump(), tuple(u.layer for u in places if u.layer is not None))
        for (name, kind, attributes), places in uses.items()
    ]
    return inventory(operators, config=program.config, **fields)
