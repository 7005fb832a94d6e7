"""baseline.json: accuracy figures that later runs are held to."""

from pathlib import Path
from typing import Any, ClassVar

from day0.artifacts.alignment import Alignment
from day0.artifacts.base import Artifact, Provenance, Record
from day0.check.figures import Figure, GreedyFigure, figures, greedy_figures
from day0.errors import Day0Error


class Key(Record):
    """What a set of figures was measured on. Runs are comparable when all but the kernel set agree."""

    model_hash: str
    reference_hash: str
    kernel_set: str
    device: str
    flags: dict[str, Any]

    @classmethod
    def of(cls, produced_by: Provenance) -> "Key":
        return cls(
            model_hash=produced_by.model_hash,
            reference_hash=produced_by.reference_hash,
            kernel_set=produced_by.kernel_set,
            device=produced_by.device,
            flags=produced_by.flags,
        )

    def differences(self, other: "Key") -> list[str]:
        """Names of what differs, the kernel set aside: that is what a check is there to judge."""
        return [name for name in type(self).model_fields if name != "kernel_set" and _differ(self, other, name)]


class Entry(Record):
    """The figures of one key. `conditions`: random weights, reduced layers and the like."""

    key: Key
    model: str
    versions: dict[str, str]
    figures: dict[str, Figure]
    greedy: dict[str, GreedyFigure]
    conditions: tuple[str, ...] = ()


class Baseline(Artifact):
    """Stored figures, one entry per key, the newest last."""

    FILE: ClassVar[str] = "baseline.json"

    entries: tuple[Entry, ...]

    def entry_for(self, key: Key) -> Entry | None:
        """The entry to compare with: of the same kernel set, else the newest comparable one; None without any."""
        comparable = [entry for entry in self.entries if not key.differences(entry.key)]
        same = [entry for entry in comparable if entry.key.kernel_set == key.kernel_set]
        found = same or comparable
        return found[-1] if found else None


def entry_of(alignment: Alignment) -> Entry:
    """The figures of an alignment as a baseline keeps them."""
    return Entry(
        key=Key.of(alignment.produced_by),
        model=alignment.model,
        versions=alignment.produced_by.versions,
        figures=figures(alignment),
        greedy=greedy_figures(alignment),
        conditions=alignment.conditions,
    )


def store(alignment: Alignment, path: Path) -> Baseline:
    """Put an alignment's figures into the baseline file at `path`, in place of those of the same key.

    Raises Day0Error when the alignment does not hold (a baseline must be worth holding to), or on a damaged file.
    """
    if alignment.holds != "holds":
        raise Day0Error(
            f"the alignment of {alignment.model}: {alignment.holds}; it makes no baseline",
            hint="store one when `day0 align` holds",
        )
    entry = entry_of(alignment)
    stored = Baseline.read(path.parent, path.name).entries if path.exists() else ()
    kept = tuple(e for e in stored if e.key != entry.key)
    baseline = Baseline(produced_by=alignment.produced_by, entries=(*kept, entry))
    baseline.write(path.parent, path.name)
    return baseline


def _differ(a: Key, b: Key, name: str) -> bool:
    return bool(getattr(a, name) != getattr(b, name))
