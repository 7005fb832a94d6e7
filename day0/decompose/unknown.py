"""Operators of a model that no recipe covers: work orders read off its structure, its source and its trace."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from day0.artifacts.inventory import Evidence, Operator, TensorAudit, TensorGroup, WeightUse
from day0.decompose.operators import HEADER_DTYPES
from day0.decompose.structure import Module, SourceClass, Structure
from day0.repo.headers import TensorHeader

_LAYER = re.compile(r"\.(\d+)(?=\.|$)")
Owners = Mapping[str, str]  # tensor -> path of the module that owns it
UNCOVERED = "no recipe covers the model"


def owners_of(structure: Structure | None, tensors: Iterable[str]) -> Owners:
    """The module of each tensor: the one whose path begins its name, the longest of several.

    A tensor that the reference renames as it is loaded has none.
    """
    paths = {module.path for module in structure.modules} if structure is not None else set()
    owners = {}
    for name in tensors:
        path = name.rpartition(".")[0]
        while path and path not in paths:
            path = path.rpartition(".")[0]
        if path:
            owners[name] = path
    return owners


def audit_of(owners: Owners, tensors: Iterable[str]) -> TensorAudit:
    """The audit without a recipe: a tensor is claimed by the module that owns it."""
    return TensorAudit(claimed=len(owners), unclaimed=tuple(name for name in tensors if name not in owners))


def tensor_groups(tensors: Mapping[str, TensorHeader], owners: Owners) -> list[TensorGroup]:
    """Every tensor with its shape, alike ones of several layers and experts in one record."""
    groups: dict[tuple[str, tuple[int, ...], str, str], list[str]] = {}
    for name, header in tensors.items():
        owner = _LAYER.sub(".*", owners.get(name, ""), count=1)
        dtype = HEADER_DTYPES.get(header.dtype, header.dtype.lower())
        groups.setdefault((_LAYER.sub(".*", name), header.shape, dtype, owner), []).append(name)
    return [
        TensorGroup(name=name, shape=shape, dtype=dtype, layers=_layers(names), count=len(names), operator=owner)
        for (name, shape, dtype, owner), names in groups.items()
    ]


def operators_of_structure(
    structure: Structure, dtype: str, ports: Mapping[str, tuple[str, ...]], owners: Owners
) -> list[Operator]:
    """One "new" record per module that owns weights, grouped over layers; its kind is its class's name.

    `ports`: the shapes that went in and out of modules, by "path:in" and "path:out".
    """
    groups: dict[tuple[str, str, tuple[Any, ...]], list[Module]] = {}
    for module in structure.modules:
        groups.setdefault((_LAYER.sub(".*", module.path, count=1), module.class_name, module.weights), []).append(
            module
        )
    return [
        _operator(place, class_name, weights, [m.path for m in found], ports, dtype, owners)
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
    owners: Owners,
) -> Operator:
    size = sum(math.prod(shape) for _, shape in weights)
    # Structure has paths in the whole model, a trace relative to the text model.
    seen = next((p.partition(":")[0] for p in ports if _same_module(paths[0], p.partition(":")[0])), "")
    return Operator(
        name=place,
        block=place.rpartition(".")[0],
        kind=class_name,
        attributes={},
        layers=_layers(paths),
        inputs=ports.get(f"{seen}:in", ()),
        outputs=ports.get(f"{seen}:out", ()),
        weights=tuple(
            WeightUse(name=name, shape=shape, dtype=dtype, tensors=_present(f"{paths[0]}.{name}", owners))
            for name, shape in weights
        ),
        parameters=size * len(paths),
        status="new",
        evidence=Evidence(established="inferred", detail=f"{UNCOVERED}; from the reference's module tree"),
    )


def _present(tensor: str, owners: Owners) -> tuple[str, ...]:
    """The tensor, where the checkpoint has it under the reference's own name."""
    return (tensor,) if tensor in owners else ()


def _layers(names: Iterable[str]) -> tuple[int, ...]:
    """The first number in each name."""
    return tuple(sorted({int(found.group(1)) for name in names if (found := _LAYER.search(name))}))


def _same_module(path: str, relative: str) -> bool:
    return path == relative or path.endswith(f".{relative}")
