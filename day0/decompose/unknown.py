"""Operators of a model that no recipe covers: work orders read off its structure, its source and its trace."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from day0.artifacts.inventory import Evidence, Operator, WeightUse
from day0.decompose.structure import Module, SourceClass, Structure
from day0.reference.trace import Trace

_LAYER = re.compile(r"\.(\d+)(?=\.|$)")
UNCOVERED = "no recipe covers the model"


def operators_of_structure(structure: Structure, dtype: str, traces: Sequence[Trace] = ()) -> list[Operator]:
    """One "new" record per module that owns weights, grouped over layers; its kind is its class's name."""
    groups: dict[tuple[str, str, tuple[Any, ...]], list[Module]] = {}
    for module in structure.modules:
        groups.setdefault((_LAYER.sub(".*", module.path, count=1), module.class_name, module.weights), []).append(
            module
        )
    ports = _ports(traces)
    return [
        _operator(place, class_name, weights, [m.path for m in found], ports, dtype)
        for (place, class_name, weights), found in groups.items()
    ]


def operators_of_source(classes: Sequence[SourceClass]) -> list[Operator]:
    """One "new" record per module class in the source of a reference that was not built."""
    return [
        Operator(
            name=c.name,
            block=c.file,
            kind=c.name,
            attributes=dict(c.attributes),
            layers=(),
            status="new",
            evidence=Evidence(established="inferred", detail=f"{UNCOVERED}; read from {c.file}, nothing was run"),
        )
        for c in classes
    ]


def functions_seen(traces: Sequence[Trace]) -> list[str]:
    """The modeling file's own functions and the calls they got: where a new operator's computation is to be found."""
    seen: dict[str, None] = {}
    for trace in traces:
        for call in trace.calls:
            if ":" in call.location and call.function != "forward":
                arguments = ", ".join(f"{k}={v}" for k, v in call.arguments.items() if v is not None)
                seen[f"{call.function}({arguments})"] = None
    return list(seen)


def _operator(
    place: str,
    class_name: str,
    weights: tuple[tuple[str, tuple[int, ...]], ...],
    paths: list[str],
    ports: Mapping[str, tuple[str, ...]],
    dtype: str,
) -> Operator:
    layers = sorted({int(found.group(1)) for path in paths if (found := _LAYER.search(path))})
    size = sum(_product(shape) for _, shape in weights)
    relative = next((p for p in ports if paths[0].endswith(p.partition(":")[0])), "")
    return Operator(
        name=place,
        block=place.rpartition(".")[0],
        kind=class_name,
        attributes={},
        layers=tuple(layers),
        inputs=ports.get(f"{relative.partition(':')[0]}:in", ()),
        outputs=ports.get(f"{relative.partition(':')[0]}:out", ()),
        weights=tuple(
            WeightUse(name=name, shape=shape, dtype=dtype, tensors=(f"{paths[0]}.{name}",)) for name, shape in weights
        ),
        parameters=size * len(paths),
        status="new",
        evidence=Evidence(established="inferred", detail=f"{UNCOVERED}; from the reference's module tree"),
    )


def _ports(traces: Sequence[Trace]) -> dict[str, tuple[str, ...]]:
    """Shapes that went into and came out of each module in the first probe, by `path:in` and `path:out`."""
    found: dict[str, tuple[str, ...]] = {}
    for location, tensor in traces[0].tensors.items() if traces else ():
        path, _, port = location.partition(":")
        side = "in" if port.startswith("in") else "out" if port.startswith("out") else ""
        if side:
            found[f"{path}:{side}"] = (*found.get(f"{path}:{side}", ()), f"{port} {list(tensor.shape)}")
    return found


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
