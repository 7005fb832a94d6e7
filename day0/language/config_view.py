"""A config as a recipe reads it: what was read is recorded, and what is there is said in the config's own words."""

import json
from collections.abc import Mapping
from typing import Any

from day0.errors import Day0Error

CHECK_CONFIG = "correct the config, or give the recipe an alias or default for the key"
CHECK_VALUE = "correct the config, or the recipe where it is for other models"
_SHOWN_CHARS = 60
_MOST_KEYS = 6


class ConfigFault(Day0Error):
    """A value of the config that is not what the recipe can use; the message names its key."""


class MissingKey(ConfigFault):
    """A config key that the config does not have, or holds null for."""


class ConfigView:
    """A config whose reads are recorded: what a recipe consumed, by dotted key.

    Keys absent from the config are looked up among `aliases` (canonical -> other spellings), then `defaults`.
    `layers`, once it is known, is how many layers the model has and what says so: lists by layer are held against it.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        aliases: Mapping[str, tuple[str, ...]] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.aliases = dict(aliases or {})
        self.defaults = dict(defaults or {})
        self.read: dict[str, Any] = {}
        self.defaulted: set[str] = set()
        self.layers: tuple[int, str] | None = None

    def get(self, dotted: str) -> Any:
        """The value of "a.b.c". Raises MissingKey, or ConfigFault where "a.b" is no object."""
        for spelling in (dotted, *self.aliases.get(dotted, ())):
            found, value = self._walk(spelling)
            if found:
                self.read[spelling] = value
                return value
        if dotted in self.defaults:
            self.defaulted.add(dotted)
            return self.defaults[dotted]
        raise MissingKey(f"the config has no key {dotted!r}", hint=CHECK_CONFIG)

    def spelling(self, dotted: str) -> str:
        """The key as this config spells it: itself, or the alias that is there."""
        return next((s for s in (dotted, *self.aliases.get(dotted, ())) if self._walk(s)[0]), dotted)

    def check_length(self, dotted: str, value: list[Any]) -> None:
        """Raises ConfigFault when a list that has one entry for each layer has more or fewer."""
        if self.layers is not None and len(value) != self.layers[0]:
            count, said_by = self.layers
            raise ConfigFault(
                f"{self.spelling(dotted)} has {len(value)} entries for {count} layers ({said_by})",
                hint="correct whichever of the two is wrong in the config",
            )

    def _walk(self, dotted: str) -> tuple[bool, Any]:
        value: Any = self.config
        parts = dotted.split(".")
        for depth, part in enumerate(parts):
            if value is None:
                return False, None
            if not isinstance(value, Mapping):
                place = ".".join(parts[:depth])
                raise ConfigFault(f"{place} is {shown(value)}, expected an object", hint=CHECK_VALUE)
            if part not in value:
                return False, None
            value = value[part]
        return True, value


def shown(value: Any) -> str:
    """A value as a config writes it, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def read_from(keys: Mapping[str, Any]) -> str:
    """The config keys that a value comes from, with what they hold; those below 1, where there are any."""
    suspects = {k: v for k, v in keys.items() if isinstance(v, int | float) and not isinstance(v, bool) and v < 1}
    chosen = suspects if len(keys) > _MOST_KEYS else keys
    said = ", ".join(f"{key} = {shown(value)}" for key, value in list(chosen.items())[:_MOST_KEYS])
    return f" (from {said})" if said else ""
