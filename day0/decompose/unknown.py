"""Operators of a model that no recipe covers: work orders read off its structure, its source and its trace."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from day0.artifacts.inventory import Evidence, Operator, WeightUse
from day0.decompose.structure import Module, SourceClass, Structure

_LAYER = re.compile(r"\.(\d+)(?=\.|$)")
UNCOVERED = "no recipe covers the model"


def operators_of_structure(structure: Structure, dtype: str, ports: Mapping[str, tuple[str, ...]]) -> list[Operator]:
    """One "new" record per module that owns weights, grouped over layers; its kind is its class's name.

    `ports`: the shapes that went in and out of modules, by "path:in" and "path:out".
    """
    groups: dict[tuple[str, str, tuple[Any, ...]], list[Module]] = {}
    for module in structure.modules:
        groups.setdefault((_LAYER.sub(".*", module.path, count=1), module.class_name, module.weights), []).append(
            module
        )
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


def _operator(
    place: str,
    class_name: str,
    weights: tuple[tuple[str, tuple[int, ...]], ...],
    paths: list[str],
    ports: Mapping[str, tuple[str, ...]],
    dtype: str,
) -> Operator:
    layers = sorted({int(found.group(1)) for path in paths if (found := _LAYER.search(path))})
    size = sum(math.prod(shape) for _, shape in weights)
    # Structure has paths in the whole model, a trace relative to the text model.
    seen = next((p.partition(":")[0] for p in ports if _same_module(paths[0], p.partition(":")[0])), "")
    return Operator(
        name=place,
        block=place.rpartition(".")[0],
        kind=class_name,
        attributes={},
        layers=tuple(layers),
        inputs=ports.get(f"{seen}:in", ()),
        outputs=ports.get(f"{seen}:out", ()),
        weights=tuple(
            WeightUse(name=name, shape=shape, dtype=dtype, tensors=(f"{paths[0]}.{name}",)) for name, shape in weights
        ),
        parameters=size * len(paths),
        status="new",
        evidence=Evidence(established="inferred", detail=f"{UNCOVERED}; from the reference's module tree"),
    )


def _same_module(path: str, relative: str) -> bool:
    return path == relative or path.endswith(f".{relative}")
