"""What became of every key of config.json: consumed, ignored (with the reason), or contradicted."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from day0.artifacts.inventory import ConfigKey
from day0.decompose.look import ReferenceConfig
from day0.decompose.tensor_audit import Mismatch
from day0.decompose.tie import TIE
from day0.errors import Day0Error
from day0.kernels.registry import get_kind
from day0.language.program import Program, apply_recipe
from day0.language.recipe import text_config

# Keys that say what the file is, not what the model computes.
DESCRIPTIVE = {
    "_name_or_path": "a name",
    "architectures": "names the reference's class",
    "auto_map": "names the repo's own code",
    "dtype": "the checkpoint's tensors say their own dtype",
    "model_type": "chooses the recipe",
    "torch_dtype": "the checkpoint's tensors say their own dtype",
    "transformers_version": "which version wrote the file",
}
NEVER_READ = "the reference never reads it"
UNREAD_BY_RECIPE = (": the reference reads it, the recipe does not", ": the reference reads them, the recipe does not")
OTHER_PART = "belongs to another part of the model than its text model"


def audit_config(
    raw: Mapping[str, Any],
    program: Program | None,
    *,
    reference: ReferenceConfig | None = None,
    mismatches: Sequence[Mismatch] = (),
    tie: tuple[str, bool] = ("", True),
) -> tuple[list[ConfigKey], list[str]]:
    """The audit of each key, nested ones dotted ("text_config.rope_parameters.rope_theta"), and warnings.

    `reference`: what its config class made of the config, and what the running reference read of it.
    `mismatches`: the extents that the recipe expects of a tensor and the checkpoint does not have. `tie`: what
    `tie_fault` says.
    """
    recipe = program.recipe if program is not None else None
    text = text_config(recipe, dict(raw)) if recipe is not None else _text_part(raw, reference)
    inside = next((k for k, v in raw.items() if v is text), "")
    auditor = _Auditor(program, reference, mismatches)
    keys = [auditor.outer(k, v) for k, v in raw.items() if k != inside] if inside else []
    keys += [auditor.text(key, value, f"{inside}.{key}" if inside else key) for key, value in _flat(text)]
    keys += auditor.defaults()
    fault, certain = tie
    if fault:
        said_by = TIE if TIE in raw else f"{inside}.{TIE}"
        auditor.warnings.append(f"config key {said_by}: {fault}")
        keys = [_with_fault(key, fault, certain) if key.key == said_by else key for key in keys]
    return keys, auditor.warnings + [_said_once(names, words) for words, names in auditor.alike.items()]


def _said_once(names: Sequence[str], words: tuple[str, str]) -> str:
    """One warning for all keys of which the same is to be said."""
    one, several = words
    return f"config key {names[0]}{one}" if len(names) == 1 else f"config keys {', '.join(names)}{several}"


def _with_fault(key: ConfigKey, fault: str, certain: bool) -> ConfigKey:
    return key.model_copy(update={"detail": fault, "audit": "contradicted" if certain else key.audit})


class _Auditor:
    def __init__(
        self, program: Program | None, reference: ReferenceConfig | None, mismatches: Sequence[Mismatch]
    ) -> None:
        self.program = program
        self.mismatches = mismatches
        self.part = reference.text if reference is not None else None
        self.whole_reads = reference.whole_reads if reference is not None else None
        self.part_reads = reference.text_reads if reference is not None else None
        self.aliases = reference.aliases if reference is not None else {}
        self.warnings: list[str] = []
        self.alike: dict[tuple[str, str], list[str]] = {}  # what is to be said of one key, of several -> the keys

    def text(self, key: str, value: Any, shown: str) -> ConfigKey:
        """A key of the text model."""
        recipe_reads = self.program.reads if self.program is not None else {}
        by_recipe = any(read == key or key.startswith(f"{read}.") for read in recipe_reads)
        top = key.partition(".")[0]
        by_reference = self.part_reads is not None and self.aliases.get(top, top) in self.part_reads
        read_by = tuple(who for who, does in (("recipe", by_recipe), ("reference", by_reference)) if does)
        contradiction = self._contradiction(key, value) if by_recipe else ""
        if contradiction:
            self.warnings.append(f"config key {shown}: {contradiction}")
            return ConfigKey(key=shown, value=value, audit="contradicted", read_by=read_by, detail=contradiction)
        if by_recipe:
            return ConfigKey(key=shown, value=value, audit="consumed", read_by=read_by)
        reason = self._ignored(top)
        if reason:
            return ConfigKey(key=shown, value=value, audit="ignored", read_by=read_by, detail=reason)
        if by_reference:
            detail = "" if self.program is None else "the recipe does not read it"
            if detail:
                self.alike.setdefault(UNREAD_BY_RECIPE, []).append(shown)
            return ConfigKey(key=shown, value=value, audit="consumed", read_by=read_by, detail=detail)
        detail = NEVER_READ if self.part_reads is not None else "the recipe does not read it"
        them = f"{detail.removesuffix('it')}them"
        words = (f" is ignored: {detail}", f" are ignored: {them}")
        self.alike.setdefault(words, []).append(shown)
        return ConfigKey(key=shown, value=value, audit="ignored", detail=detail)

    def outer(self, key: str, value: Any) -> ConfigKey:
        """A key beside the text model, in a wrapper of several modalities."""
        reason = self._ignored(key)
        if isinstance(value, Mapping):
            return ConfigKey(key=key, value=None, audit="ignored", detail=reason or OTHER_PART)
        if reason:
            return ConfigKey(key=key, value=value, audit="ignored", detail=reason)
        if self.whole_reads is not None and key in self.whole_reads:
            return ConfigKey(key=key, value=value, audit="consumed", read_by=("reference",), detail=OTHER_PART)
        detail = NEVER_READ if self.whole_reads is not None else OTHER_PART
        return ConfigKey(key=key, value=value, audit="ignored", detail=detail)

    def defaults(self) -> list[ConfigKey]:
        """Keys that config.json leaves out and the recipe takes from its defaults."""
        keys = []
        for key in sorted(self.program.defaulted) if self.program is not None else ():
            assert self.program is not None
            value = self.program.recipe.match.defaults[key]
            contradiction = self._contradiction(key, value)
            if contradiction:
                self.warnings.append(f"config key {key} (absent): {contradiction}")
            keys.append(
                ConfigKey(
                    key=key,
                    value=value,
                    audit="contradicted" if contradiction else "consumed",
                    read_by=("recipe",),
                    detail=contradiction or "absent: the recipe's default",
                )
            )
        return keys

    def _ignored(self, key: str) -> str:
        ignored = self.program.recipe.match.ignored if self.program is not None else {}
        return ignored.get(key) or DESCRIPTIVE.get(key, "")

    def _contradiction(self, key: str, value: Any) -> str:
        """What the reference's config, or a tensor, says against the value that the recipe took."""
        if isinstance(value, int) and not isinstance(value, bool):
            for mismatch in self.mismatches:
                if mismatch.wanted == value and self._decides(key, mismatch):
                    return f"{value} does not fit the checkpoint: {mismatch.tensor} has {mismatch.found} there"
        used: Any = self.part
        for name in key.split("."):
            used = used.get(self.aliases.get(name, name), value) if isinstance(used, Mapping) else value
        number, word, several = int | float | bool, str, list | tuple
        comparable = any(isinstance(value, kind) and isinstance(used, kind) for kind in (number, word, several))
        if comparable and self._canonical(key, used) != self._canonical(key, value):
            return f"the recipe takes {value!r}, the reference's config class makes it {used!r}"
        return ""

    def _canonical(self, key: str, value: Any) -> Any:
        """Each word the first of those that mean the same for this key, sequences lists."""
        if isinstance(value, list | tuple):
            return [self._canonical(key, item) for item in value]
        groups = self.program.recipe.match.spellings.get(key, ()) if self.program is not None else ()
        return next((group[0] for group in groups if value in group), value) if isinstance(value, str) else value

    def _decides(self, key: str, mismatch: Mismatch) -> bool:
        """Whether the extent follows from the key: a key of an equal number may have nothing to do with it."""
        assert self.program is not None
        config = copy.deepcopy(self.program.config)
        *outer, last = key.split(".")
        place = config
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = mismatch.found
        try:
            changed = apply_recipe(self.program.recipe, config)
        except Day0Error:  # the recipe refuses a model with that value, so the checkpoint is not one
            return False
        use = next((u for u in changed.uses() if u.path == mismatch.path), None)
        weight = get_kind(use.kind).weights(use.attributes).get(mismatch.weight) if use is not None else None
        return weight is not None and weight.shape[mismatch.axis] == mismatch.found


def _text_part(raw: Mapping[str, Any], reference: ReferenceConfig | None) -> Mapping[str, Any]:
    """The text model's part of a config that no recipe knows."""
    inner = raw.get(reference.text_key) if reference is not None and reference.text_key else None
    return inner if isinstance(inner, Mapping) else raw


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
