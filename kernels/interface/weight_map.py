"""Applies a package's weight map: builds each canonical weight from checkpoint tensors."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Read = Callable[[str], Tensor]
Shape = tuple[int, ...]

# What goes with an operation: whole numbers, and of "sizes" and "shape" lists of them.
_FIELDS: dict[str, tuple[str, ...]] = {
    "concat": ("dim",),
    "stack": (),
    "split": ("sizes", "take"),
    "groups": ("count", "sizes", "take"),
    "transpose": (),
    "reshape": ("shape",),
}


def build(source: str | Mapping[str, Any], read: Read) -> Tensor:
    """The tensor a resolved source describes (see day0.language.weights for the operations)."""
    if isinstance(source, str):
        return read(source)
    if "concat" in source:
        return torch.cat([build(part, read) for part in source["concat"]], dim=source["dim"])
    if "stack" in source:
        return torch.stack([build(part, read) for part in source["stack"]])
    if "split" in source:
        parts = torch.split(build(source["split"], read), list(source["sizes"]), dim=source.get("dim", 0))
        part: Tensor = parts[source["take"]]
        return part.contiguous()
    if "groups" in source:
        whole = build(source["groups"], read)
        grouped = whole.unflatten(0, (source["count"], sum(source["sizes"])))
        part = torch.split(grouped, list(source["sizes"]), dim=1)[source["take"]]
        return part.flatten(0, 1).contiguous()
    if "transpose" in source:
        return build(source["transpose"], read).transpose(-1, -2).contiguous()
    if "reshape" in source:
        return _reshaped(build(source["reshape"], read), tuple(source["shape"]))
    raise ValueError(f"unknown weight operation {sorted(source)}")


def _reshaped(whole: Tensor, shape: Shape) -> Tensor:
    """Raises ValueError where the extents are the same ones in another order: that tensor is transposed."""
    old, new = ([extent for extent in extents if extent != 1] for extents in (whole.shape, shape))
    if old != new and sorted(old) == sorted(new):
        raise ValueError(f"{list(whole.shape)} has the extents of {list(shape)} in another order")
    return whole.reshape(shape)


def tensors_read(source: Any) -> tuple[str, ...]:
    """Every checkpoint tensor that `source` is built from, each once. Raises ValueError for what is no source."""
    if isinstance(source, str):
        return (source,)
    operation = next((key for key in _FIELDS if isinstance(source, Mapping) and key in source), None)
    if operation is None:
        raise ValueError(f"{_shown(source)} is no tensor and no operation on tensors")
    for name in _FIELDS[operation]:
        if not _is_field(name, source.get(name)):
            raise ValueError(f"{operation} with {name} {_shown(source.get(name))}")
    if "take" in source and source["take"] not in range(len(source["sizes"])):
        raise ValueError(f"{operation} takes part {source['take']} of {len(source['sizes'])}")
    parts = source[operation] if operation in ("concat", "stack") else [source[operation]]
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"{operation} of {_shown(parts)}")
    return tuple(dict.fromkeys(name for part in parts for name in tensors_read(part)))


def _is_field(name: str, value: Any) -> bool:
    values = value if name in ("sizes", "shape") else [value]
    return isinstance(values, list) and bool(values) and all(type(number) is int for number in values)


def _shown(value: Any) -> str:
    return json.dumps(value)[:60]


def built_shape(source: str | Mapping[str, Any], shapes: Mapping[str, Shape]) -> Shape:
    """The shape `build` would give, from the checkpoint's headers alone.

    Raises KeyError on a missing tensor and ValueError when the shapes do not fit the operation.
    """
    try:
        return tuple(build(source, lambda name: torch.empty(shapes[name], device="meta")).shape)
    except (RuntimeError, IndexError) as error:
        raise ValueError(str(error).splitlines()[0]) from error


@dataclass(frozen=True)
class Misfit:
    """Checkpoint tensors that do not give a weight its shape; `needed`: what each has to be, where that is known."""

    tensors: tuple[str, ...]
    found: tuple[Shape, ...]
    needed: Shape | None
    wanted: Shape  # of the weight

    def __str__(self) -> str:
        """`{tensor} is [8, 4], needed is [4, 8]`, or that several together do not give the weight."""
        if self.needed is not None:
            more = f" (and {len(self.tensors) - 1} more like it)" if len(self.tensors) > 1 else ""
            return f"{self.tensors[0]}{more} is {list(self.found[0])}, needed is {list(self.needed)}"
        parts = ", ".join(f"{n} {list(s)}" for n, s in zip(self.tensors[:4], self.found, strict=False))
        return f"{parts}{', ...' if len(self.tensors) > 4 else ''}: not the parts of {list(self.wanted)}"


def misfits(source: str | Mapping[str, Any], wanted: Shape, shapes: Mapping[str, Shape]) -> list[Misfit]:
    """Which tensors are to blame when `source` does not build a weight of shape `wanted`; [] when it does.

    `shapes` has every tensor of `source`. Tensors of one shape that need another one are one misfit.
    """
    with suppress(ValueError):
        if built_shape(source, shapes) == wanted:
            return []
    needed: dict[str, Shape | None] = {}
    _need(source, wanted, shapes, needed)
    groups: dict[tuple[Shape, Shape], list[str]] = {}
    for name, shape in needed.items():
        if shape is not None and shape != shapes[name]:
            groups.setdefault((shapes[name], shape), []).append(name)
    if groups:
        return [Misfit(tuple(names), (found,), shape, wanted) for (found, shape), names in groups.items()]
    return [Misfit(tuple(needed), tuple(shapes[name] for name in needed), None, wanted)]


def _need(
    source: str | Mapping[str, Any], wanted: Shape | None, shapes: Mapping[str, Shape], needed: dict[str, Shape | None]
) -> None:
    """Enter the shape that each tensor of `source` needs for `source` to have the shape `wanted`; None: unknown."""
    if isinstance(source, str):
        needed[source] = wanted
        return
    if "concat" in source:
        for part, shape in zip(source["concat"], _shapes_of_parts(source, wanted, shapes), strict=True):
            _need(part, shape, shapes, needed)
        return
    if "stack" in source:
        fits = wanted is not None and wanted[:1] == (len(source["stack"]),)
        for part in source["stack"]:
            _need(part, wanted[1:] if wanted is not None and fits else None, shapes, needed)
        return
    operation = next(key for key in ("split", "groups", "transpose", "reshape") if key in source)
    inner: Shape | None = None
    if wanted is not None and operation == "split":
        inner = _with(wanted, source.get("dim", 0), sum(source["sizes"]))
    elif wanted is not None and operation == "groups":
        inner = _with(wanted, 0, source["count"] * sum(source["sizes"]))
    elif wanted is not None and operation == "transpose":
        inner = (*wanted[:-2], *wanted[:-3:-1])
    elif wanted is not None:
        inner = _before_reshape(source["reshape"], tuple(source["shape"]), shapes)
    _need(source[operation], inner, shapes, needed)


def _shapes_of_parts(
    source: Mapping[str, Any], wanted: Shape | None, shapes: Mapping[str, Shape]
) -> list[Shape | None]:
    """What each part of a concatenation needs: those that fit keep their extent, and the others share the rest.

    Where all fit by themselves and only their sum is wrong, each needs an even share, if they are alike.
    """
    parts = source["concat"]
    if wanted is None or not -len(wanted) <= source["dim"] < len(wanted):
        return [None] * len(parts)
    dim = source["dim"]
    extents = [_extent(part, wanted, dim, shapes) for part in parts]
    rest = wanted[dim] - sum(extent for extent in extents if extent is not None)
    if rest and len(set(extents)) == 1 and None not in extents:
        extents, rest = [None for _ in parts], wanted[dim]
    share, odd = divmod(rest, max(1, extents.count(None)))
    shared = _with(wanted, dim, share) if share > 0 and not odd else None
    return [shared if extent is None else _with(wanted, dim, extent) for extent in extents]


def _before_reshape(inner: str | Mapping[str, Any], shape: Shape, shapes: Mapping[str, Shape]) -> Shape | None:
    """What is reshaped: `shape` with the extents of 1 where the tensors have theirs."""
    try:
        _reshaped(torch.empty(found := built_shape(inner, shapes), device="meta"), shape)
        return found
    except (RuntimeError, ValueError):
        pass
    for found in shapes.values():
        ones = [axis for axis, extent in enumerate(found) if extent == 1]
        if len(found) == len(shape) + len(ones):
            rest = iter(shape)
            return tuple(1 if axis in ones else next(rest) for axis in range(len(found)))
    return None


def _extent(part: str | Mapping[str, Any], wanted: Shape, dim: int, shapes: Mapping[str, Shape]) -> int | None:
    """How far a part of a concatenation reaches along `dim`; None when it does not fit `wanted` in the others."""
    if not isinstance(part, str) and ("groups" in part or "split" in part):  # they say it, whatever their tensor is
        size: int = part["sizes"][part["take"]]
        count: int = part.get("count", 1)
        return size * count
    try:
        shape = built_shape(part, shapes)
    except ValueError:
        return None
    return shape[dim] if len(shape) == len(wanted) and _with(shape, dim, 0) == _with(wanted, dim, 0) else None


def _with(shape: Shape, dim: int, extent: int) -> Shape:
    dim %= len(shape)
    return (*shape[:dim], extent, *shape[dim + 1 :])
