"""What changed between two inventories: two revisions of a model, or two models."""

from collections.abc import Iterator, Mapping
from typing import Any

from day0.artifacts.base import Record
from day0.artifacts.inventory import Inventory, Operator


class Change(Record):
    """One thing that differs: `what` is "operator", "attribute", "layers", "weight", "config" or "model"."""

    what: str
    name: str
    before: Any = None
    after: Any = None


def diff(before: Inventory, after: Inventory) -> list[Change]:
    """Every difference in what the two models are; how each is known, and what it costs, is not compared."""
    changes = [
        Change(what="model", name=name, before=getattr(before, name), after=getattr(after, name))
        for name in ("recipe", "layers", "schedule", "parameters", "weights_dtype")
        if getattr(before, name) != getattr(after, name)
    ]
    changes += _mapping_changes("config", _flat(before.config), _flat(after.config))
    old, new = _by_name(before), _by_name(after)
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            changes.append(Change(what="operator", name=name, before=old[name][0].kind))
        elif name not in old:
            changes.append(Change(what="operator", name=name, after=new[name][0].kind))
        else:
            changes += _operator_changes(name, old[name], new[name])
    return changes


def _by_name(inventory: Inventory) -> dict[str, list[Operator]]:
    found: dict[str, list[Operator]] = {}
    for operator in inventory.operators:
        found.setdefault(operator.name, []).append(operator)
    return found


def _operator_changes(name: str, old: list[Operator], new: list[Operator]) -> Iterator[Change]:
    """An operator stands once per set of attributes; the sets are paired in the order of their first layers."""
    for i in range(max(len(old), len(new))):
        shown = name if len(old) == len(new) == 1 else f"{name} ({i + 1})"
        if i >= len(new):
            yield Change(what="operator", name=shown, before=old[i].kind)
        elif i >= len(old):
            yield Change(what="operator", name=shown, after=new[i].kind)
        else:
            yield from _pair_changes(shown, old[i], new[i])


def _pair_changes(name: str, old: Operator, new: Operator) -> Iterator[Change]:
    if old.kind != new.kind:
        yield Change(what="operator", name=name, before=old.kind, after=new.kind)
        return
    if old.layers != new.layers:
        yield Change(what="layers", name=name, before=old.layers, after=new.layers)
    yield from _mapping_changes("attribute", old.attributes, new.attributes, prefix=f"{name}.")
    weights = [{w.name: (w.shape, w.dtype, w.tensors, w.transform) for w in o.weights} for o in (old, new)]
    yield from _mapping_changes("weight", weights[0], weights[1], prefix=f"{name}.")


def _mapping_changes(what: str, old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[Change]:
    keys = dict.fromkeys((*old, *new))
    return [
        Change(what=what, name=f"{prefix}{key}", before=old.get(key), after=new.get(key))
        for key in keys
        if (key in old) != (key in new) or old.get(key) != new.get(key)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
