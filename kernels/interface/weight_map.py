"""Applies a package's weight map: builds each canonical weight from checkpoint tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Read = Callable[[str], Tensor]
Shape = tuple[int, ...]


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
        return build(source["reshape"], read).reshape(tuple(source["shape"]))
    raise ValueError(f"unknown weight operation {sorted(source)}")


def built_shape(source: str | Mapping[str, Any], shapes: Mapping[str, Shape]) -> Shape:
    """The shape `build` would give, from the checkpoint's headers alone.

    Raises KeyError on a missing tensor and ValueError when the shapes do not fit the operation.
    """
    try:
        return tuple(build(source, lambda name: torch.empty(shapes[name], device="meta")).shape)
    except (RuntimeError, IndexError) as error:
        raise ValueError(str(error).splitlines()[0]) from error
