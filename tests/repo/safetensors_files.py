"""Write safetensors files by hand: right ones, header-only ones, and wrong ones."""

import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from day0.repo.headers import DTYPE_BITS

Shapes = Mapping[str, tuple[str, Sequence[int]]]
"""Tensor name -> (safetensors dtype, shape)."""


def layout(tensors: Shapes) -> dict[str, Any]:
    """The header object of `tensors`, laid one after another."""
    entries: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + math.prod(shape) * DTYPE_BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    return entries


def data_bytes(entries: Mapping[str, Any]) -> int:
    """Length of the data area that `entries` describes."""
    return max((entry["data_offsets"][1] for entry in entries.values()), default=0)


def encode(entries: Any) -> bytes:
    """Header length and JSON of a header object."""
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw


def write_header_only(path: Path, tensors: Shapes) -> None:
    """Write a safetensors file that ends after its header: for full-size models without their weights."""
    path.write_bytes(encode(layout(tensors)))


def write_random(path: Path, tensors: Shapes, seed: int = 0) -> None:
    """Write a complete safetensors file of random bytes."""
    entries = layout(tensors)
    path.write_bytes(encode(entries) + random.Random(seed).randbytes(data_bytes(entries)))


def write_index(folder: Path, weight_map: Mapping[str, Any]) -> None:
    """Write `model.safetensors.index.json`."""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict(weight_map)}))


def write_config(folder: Path, config: Any) -> Path:
    """Write `config.json` into `folder`, made where it is missing; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
