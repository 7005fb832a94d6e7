"""The device catalogue: what a plan needs to know of a target, each figure with its source."""

import difflib
import os
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from day0.artifacts.regular import regular
from day0.artifacts.text import parse_yaml
from day0.errors import Day0Error


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Section):
    """A number and where it comes from: a URL, or how it was measured or computed."""

    value: float = Field(gt=0, allow_inf_nan=False)
    source: str = Field(min_length=10)


class Measured(_Section):
    """What a program reaches on the device, below its datasheet. Bytes per second count reads and writes."""

    copy_bytes_per_s: Figure
    bfloat16_matmul_flops_per_s: Figure
    launch_eager_us: Figure
    launch_graph_us: Figure


class Device(_Section):
    """One target. `capability` is CUDA's (9.0 for Hopper); rates are dense, by dtype of the operands."""

    device: str
    name: str
    type: Literal["cuda", "cpu"]
    capability: float | None = None
    triton: bool
    memory_bytes: Figure | None = None  # None: that of the machine that makes the plan
    bandwidth_bytes_per_s: Figure
    peak_flops_per_s: dict[Literal["float64", "float32", "bfloat16", "float16", "float8"], Figure]
    measured: Measured | None = None

    @field_validator("peak_flops_per_s")
    @classmethod
    def _float32_is_there(cls, peaks: dict[str, Figure]) -> dict[str, Figure]:
        if "float32" not in peaks:
            raise ValueError("every device states its float32 rate")
        return peaks

    def usable_memory(self) -> int:
        """Bytes of memory of the device; of this machine for a device that states none."""
        if self.memory_bytes is not None:
            return int(self.memory_bytes.value)
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_device(text: str, *, name: str) -> Device:
    """Parse and validate YAML. Raises Day0Error naming the file and the first thing wrong in it."""
    data = parse_yaml(text, name=name, hint="correct the file")
    try:
        return Device.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise Day0Error(f"{name}: {where}: {first['msg']}", hint="see `day0 schema device`") from error


def shipped_devices() -> dict[str, Device]:
    """All devices that come with day0, by name."""
    found = {}
    for entry in sorted((files("day0.recipes") / "devices").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".yaml"):
            device = read_device(entry.read_text(encoding="utf-8"), name=f"recipes/devices/{entry.name}")
            found[device.device] = device
    return found


def load_device(name_or_path: str) -> Device:
    """A shipped device by name, or any device file by path. Raises Day0Error listing the known names."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        try:
            return read_device(regular(path).read_text(encoding="utf-8"), name=str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise Day0Error(f"cannot read device {path}: {error}", hint="check the path") from error
    known = shipped_devices()
    if name_or_path not in known:
        near = difflib.get_close_matches(name_or_path.lower(), known, n=1)
        suggestion = f"did you mean {near[0]}? " if near else ""
        raise Day0Error(f"no device {name_or_path!r}", hint=f"{suggestion}known: {', '.join(known)}; or a YAML file")
    return known[name_or_path]
