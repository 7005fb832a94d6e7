"""Which keys of a config does the reference read? Measured by watching the config object while it is built and run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ConfigReads:
    """Keys read so far, by config class name ("Glm5NextTextConfig"), aliases resolved to the key that they read."""

    def __init__(self) -> None:
        self.by_class: dict[str, set[str]] = {}

    def of(self, config: Any) -> frozenset[str]:
        """Keys that were read of a config object's class."""
        return frozenset(self.by_class.get(type(config).__name__, ()))


@contextmanager
def watch_reads(config: Any) -> Iterator[ConfigReads]:
    """While active, every attribute that anything reads of `config` or its sub-configs is noted.

    The classes are watched, not the objects, since a model keeps copies of its config. `attribute_map` (another name
    for a key) counts as reading the key. What the base class reads of every config (its dtype, its architectures) is
    noted like any other read.
    """
    reads = ConfigReads()
    parts = [config, *(getattr(config, n, None) for n in getattr(config, "sub_configs", ()))]
    watched = {type(part) for part in parts if part is not None}
    had = {cls: cls.__dict__.get("__getattribute__") for cls in watched}
    for cls in watched:
        cls.__getattribute__ = _watching(cls, reads.by_class.setdefault(cls.__name__, set()))
    try:
        yield reads
    finally:
        for cls, own in had.items():
            if own is None:
                del cls.__getattribute__
            else:
                cls.__getattribute__ = own


def _watching(cls: Any, noted: set[str]) -> Any:
    original = cls.__getattribute__
    aliases = dict(getattr(cls, "attribute_map", None) or {})

    def read(self: Any, name: str) -> Any:
        if not name.startswith("_"):
            noted.add(aliases.get(name, name))
        return original(self, name)

    return read
