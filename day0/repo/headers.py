"""Read and check safetensors headers without touching the weights.

The format (https://github.com/huggingface/safetensors#format): 8 bytes of little-endian header length N, N bytes of
UTF-8 JSON, then the data area. The JSON maps a tensor name to `dtype`, `shape` and `data_offsets` (relative to the data
area); `__metadata__` maps strings to strings. The tensors tile the data area: no overlap, no hole.
"""

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0.artifacts.text import UnusableJsonError, unique_pairs
from day0.errors import Day0Error

DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
FIRST_READ_BYTES = 64 * 1024
_LENGTH_BYTES = 8
_MAX_DIMENSION = 2**63 - 1
_MAX_RANK = 64  # bounds the product of a hostile shape; torch's own limit on dimensions
_TENSOR_KEYS = {"dtype", "shape", "data_offsets"}

ReadRange = Callable[[int, int], bytes]
"""`read(start, end)` returns the file's bytes [start, end); fewer only where the file ends before `end`."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a safetensors header says about one tensor; [start, end) are byte offsets from the start of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.end - self.start

    @property
    def numel(self) -> int:
        """Number of elements (logical ones: an F4 tensor packs two in a byte)."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class FileHeader:
    """One safetensors file's header: its tensors by name, its `__metadata__`, and where its data area starts."""

    tensors: dict[str, TensorHeader]
    metadata: dict[str, str]
    data_start: int


def read_file_header(path: Path, *, file: str | None = None, headers_only: bool = False) -> FileHeader:
    """Read the header of the safetensors file at `path`; `file` is the name it carries in records and errors.

    With `headers_only` a file that ends right after its header (weights absent) is accepted too.
    Raises Day0Error when the file cannot be read or the header breaks the format.
    """
    try:
        with path.open("rb") as handle:
            size = handle.seek(0, 2)

            def read(start: int, end: int) -> bytes:
                handle.seek(start)
                return handle.read(end - start)

            return read_header(read, size, file or path.name, headers_only=headers_only)
    except OSError as error:
        raise Day0Error(
            f"{file or path}: cannot be read ({error.strerror or error})",
            hint="check that the file exists and is readable",
        ) from error


def read_header(read: ReadRange, size: int, file: str, *, headers_only: bool = False) -> FileHeader:
    """Read and check the header of a safetensors file of `size` bytes through `read`.

    One range of at most 64 KiB is read first, and a second one only where the header is longer.
    Raises Day0Error naming the file, and the tensor where one is to blame.
    """
    if size < _LENGTH_BYTES:
        raise _broken(file, f"file of {size} bytes is too short for a safetensors header", "truncated")
    first = read(0, min(size, FIRST_READ_BYTES))
    if len(first) < _LENGTH_BYTES:
        raise _broken(file, f"only {len(first)} bytes could be read of the header length", "truncated")
    (length,) = struct.unpack("<Q", first[:_LENGTH_BYTES])
    if length > MAX_HEADER_BYTES:
        raise _broken(file, f"header length {length} is over the format's limit of {MAX_HEADER_BYTES} bytes")
    data_start = _LENGTH_BYTES + length
    if data_start > size:
        raise _broken(file, f"header length {length} reaches beyond the file of {size} bytes", "truncated")
    raw = first[_LENGTH_BYTES:data_start]
    if data_start > len(first):
        raw += read(len(first), data_start)
    if len(raw) != length:
        raise _broken(file, f"header has {length} bytes but only {len(raw)} could be read", "truncated")
    data_bytes = None if headers_only and size == data_start else size - data_start
    return parse_header(raw, data_bytes, file)


def parse_header(raw: bytes, data_bytes: int | None, file: str) -> FileHeader:
    """Check the JSON part `raw` of a header against a data area of `data_bytes` (None: absent, any length is right)."""
    entries = _load_json(raw, file)
    data_start = _LENGTH_BYTES + len(raw)
    metadata = _check_metadata(entries.pop("__metadata__", {}), file)
    tensors = {name: _check_tensor(name, entry, data_start, file) for name, entry in entries.items()}
    _check_tiling(tensors, data_start, data_bytes, file)
    return FileHeader(tensors, metadata, data_start)


def _load_json(raw: bytes, file: str) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
        entries = json.loads(text, object_pairs_hook=unique_pairs)
    except UnusableJsonError as error:
        raise _broken(file, f"header is not usable: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _broken(file, "header is not valid UTF-8 JSON") from error
    if not text.startswith("{") or not isinstance(entries, dict):
        raise _broken(file, "header is not a JSON object")
    return entries


def _check_metadata(metadata: Any, file: str) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(file, "__metadata__ is not an object of strings")
    return metadata


def _check_tensor(name: str, entry: Any, data_start: int, file: str) -> TensorHeader:
    if not name.isprintable():
        raise _broken(file, f"tensor name {name!r} holds unprintable characters")
    if not isinstance(entry, dict) or entry.keys() != _TENSOR_KEYS:
        raise _broken(file, f"tensor {name!r} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _broken(file, f"tensor {name!r} has an unknown dtype {_short(dtype)}")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(_is_size(dimension) for dimension in shape):
        raise _broken(file, f"tensor {name!r} has an invalid shape {_short(shape)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise _broken(file, f"tensor {name!r} has invalid data_offsets {_short(offsets)}")
    start, end = offsets
    if start > end:
        raise _broken(file, f"tensor {name!r} ends at {end}, before its start {start}")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != (end - start) * 8:
        needed = f"{bits // 8}" if bits % 8 == 0 else f"{bits / 8:.2f}"
        raise _broken(
            file, f"tensor {name!r}: {dtype} {_short(shape)} needs {needed} bytes but data_offsets hold {end - start}"
        )
    return TensorHeader(name, dtype, tuple(shape), file, data_start + start, data_start + end)


def _check_tiling(tensors: dict[str, TensorHeader], data_start: int, data_bytes: int | None, file: str) -> None:
    position = data_start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if data_bytes is not None and tensor.end > data_start + data_bytes:
            raise _broken(
                file,
                f"tensor {tensor.name!r} ends at byte {tensor.end - data_start} of a data area of {data_bytes} bytes",
                "truncated",
            )
        if tensor.start < position:
            raise _broken(file, f"tensor {tensor.name!r} overlaps the tensor before it")
        if tensor.start > position:
            raise _broken(file, f"hole of {tensor.start - position} bytes before tensor {tensor.name!r}")
        position = tensor.end
    if data_bytes is not None and position != data_start + data_bytes:
        raise _broken(file, f"{data_start + data_bytes - position} bytes after the last tensor belong to no tensor")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_DIMENSION


def _short(value: Any) -> str:
    if isinstance(value, list):
        items = [str(item) if type(item) is int else type(item).__name__ for item in value[:8]]
        return f"[{', '.join(items)}{', ...' if len(value) > 8 else ''}]"[:200]
    return ascii(value)[:80] if isinstance(value, str) else type(value).__name__


def _broken(file: str, what: str, cause: str = "damaged") -> Day0Error:
    return Day0Error(f"{file}: {what}", hint=f"the file is {cause} or not a safetensors file: download it again")
