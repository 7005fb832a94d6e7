"""Block sizes and warps per kernel, device and shape bucket: declared as a small space, measured once, kept on disk.

Launchers only ever look up (`Space.config`): a launch must not run twice on state that it updates in place, and must
not measure inside a graph capture. `Space.tune` measures, on inputs made for it; `day0 kernels bench` does.
"""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from day0.artifacts.base import write_atomically

Config = Mapping[str, int]
Bucket = tuple[int | str, ...]

CACHE_ENV = "DAY0_CACHE"
SHARED = (str(Path(__file__).with_name("triton_math.py")),)


def tuning_folder() -> Path:
    """Where results are kept: $DAY0_CACHE/tuning, by default ~/.cache/day0/tuning."""
    root = os.environ.get(CACHE_ENV) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "day0"
    return Path(root) / "tuning"


@dataclass(frozen=True)
class Space:
    """The configurations of one kernel. The first is taken where nothing was measured: it must be right everywhere.

    `kernel`: "recurrence.decode"; `source`: the file that holds the kernel, or more that decide how it is launched, so
    that an edit measures again. What kernels share (SHARED) counts for all.
    """

    kernel: str
    source: str | tuple[str, ...]
    configs: tuple[Config, ...]

    def config(self, bucket: Bucket) -> Config:
        """The configuration measured for this bucket on this device, or the first."""
        if not torch.cuda.is_available():
            return self.configs[0]
        measured = _load(self._path()).get(_text(bucket))
        return measured if measured in self.configs else self.configs[0]

    def tune(self, bucket: Bucket, measure: Callable[[Config], float]) -> Config:
        """Keep the configuration for which `measure` (seconds; inf: cannot run) is least, unless one is known."""
        known = _load(self._path())
        if known.get(_text(bucket)) not in self.configs:
            times = {i: measure(config) for i, config in enumerate(self.configs)}
            known[_text(bucket)] = self.configs[min(times, key=lambda i: times[i])]
            path = self._path()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({k: dict(v) for k, v in known.items()}, indent=1).encode())
        return known[_text(bucket)]

    def _path(self) -> Path:
        # The space, too: with another one, what was the best of the old need not be.
        space = hashlib.sha256(repr([sorted(config.items()) for config in self.configs]).encode()).hexdigest()[:6]
        return tuning_folder() / f"{self.kernel}-{_device_key()}-{_source_hash(self.source)}-{space}.json"


@cache
def _load(path: Path) -> dict[str, Config]:
    """What was measured, shared by all that ask; a damaged file counts as none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(bucket: Bucket) -> str:
    return "/".join(map(str, bucket))


@cache
def _device_key() -> str:
    """Device name and the versions that compile for it, as part of a file name."""
    name = torch.cuda.get_device_name()
    facts = f"{name} {torch.cuda.get_device_capability()} {torch.__version__} {importlib.metadata.version('triton')}"
    safe = "".join(c if c.isalnum() else "_" for c in name)
    return f"{safe}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


@cache
def _source_hash(source: str | tuple[str, ...]) -> str:
    files = (source,) if isinstance(source, str) else source
    contents = [Path(file).read_bytes() for file in (*files, *SHARED)]
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


def size_bucket(n: int) -> int:
    """Sizes share a bucket up to the next power of two."""
    return 1 << max(n - 1, 0).bit_length()
