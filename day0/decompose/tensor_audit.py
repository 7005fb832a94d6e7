"""What became of every tensor of the checkpoint, from its headers alone."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from day0.artifacts.inventory import TensorAudit
from day0.kernels.interface.weight_map import Misfit, built_shape, misfits
from day0.kernels.registry import get_kind
from day0.language.program import Program
from day0.language.weights import Resolved, tensor_names
from day0.repo.headers import TensorHeader


@dataclass(frozen=True)
class Mismatch:
    """The recipe expects the weight to have `wanted` elements along `axis`, and `tensor` gives `found`."""

    wanted: int
    found: int
    path: str  # of the first operator of that name where it is so
    weight: str
    axis: int
    tensor: str


@dataclass(frozen=True)
class TensorEvidence:
    """The audit, and the extents that differ, each once for all layers."""

    audit: TensorAudit
    mismatches: tuple[Mismatch, ...] = ()


def audit_tensors(program: Program, tensors: Mapping[str, TensorHeader]) -> TensorEvidence:
    """Hold every operator's weights against the headers. A repo without weights gives an empty audit."""
    if not tensors:
        return TensorEvidence(TensorAudit(claimed=0))
    claimed: set[str] = set()
    missing: list[str] = []
    mismatched: list[str] = []
    extents: dict[tuple[str, str, int, int], Mismatch] = {}
    shapes: dict[Any, tuple[int, ...] | None] = {}
    for use in program.uses():
        expected = get_kind(use.kind).weights(use.attributes)
        for weight, source in use.weights.items():
            names = list(tensor_names(source))
            absent = [name for name in names if name not in tensors]
            claimed.update(name for name in names if name in tensors)
            missing += absent
            if absent:
                continue
            wanted = expected[weight].shape
            # Layers are alike: one shape per way of building from the same shapes.
            key = _signature(source, tensors)
            if key not in shapes:
                shapes[key] = _built(source, {name: tensors[name].shape for name in names})
            shape = shapes[key]
            if shape == wanted:
                continue
            for misfit in misfits(source, wanted, {name: tensors[name].shape for name in names}):
                mismatched.append(_said(misfit, f"{use.path}.{weight}"))
                for axis, (w, s) in enumerate(zip(wanted, shape or (), strict=False)):
                    if w != s:
                        seen = Mismatch(w, s, use.path, weight, axis, misfit.tensors[0])
                        extents.setdefault((use.name, weight, axis, w), seen)
    rest = [name for name in tensors if name not in claimed]
    left_out = {name: pattern for name in rest for pattern in program.left_out if fnmatch.fnmatchcase(name, pattern)}
    used = set(left_out.values())
    return TensorEvidence(
        TensorAudit(
            claimed=len(claimed),
            left_out={pattern: reason for pattern, reason in program.left_out.items() if pattern in used},
            left_out_count=len(left_out),
            unclaimed=tuple(name for name in rest if name not in left_out),
            missing=tuple(dict.fromkeys(missing)),
            shape_mismatch=tuple(mismatched),
        ),
        tuple(extents.values()),
    )


def _said(misfit: Misfit, weight: str) -> str:
    if misfit.needed is None:
        return f"{misfit.tensors[0]} ({weight}): {misfit}"
    more = f" and {len(misfit.tensors) - 1} more" if len(misfit.tensors) > 1 else ""
    return f"{misfit.tensors[0]}{more} ({weight}): {list(misfit.found[0])}, the recipe expects {list(misfit.needed)}"


def _built(source: Resolved, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of a weight, None when its tensors do not fit together."""
    try:
        return built_shape(source, shapes)
    except ValueError:
        return None


def _signature(source: Any, tensors: Mapping[str, TensorHeader]) -> Any:
    """A resolved source with every tensor's name replaced by its shape."""
    if isinstance(source, str):
        return tensors[source].shape if source in tensors else source
    if isinstance(source, Mapping):
        return tuple((key, _signature(value, tensors)) for key, value in source.items())
    return tuple(_signature(item, tensors) for item in source) if isinstance(source, list | tuple) else source
