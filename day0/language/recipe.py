"""The recipe: a family of models as data. Schema, reading, writing, and the published JSON Schema."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from day0.artifacts.chat import Chat
from day0.artifacts.regular import regular
from day0.artifacts.text import parse_yaml
from day0.errors import Day0Error
from day0.language.config_view import shown
from day0.language.steps import is_name, parse_step


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Match(Section):
    """Which configs this recipe is for, and where the text model's config stands in them."""

    model_types: tuple[str, ...]
    # Key of the sub-config of the text model in a multimodal wrapper; used when the config has it.
    text_config: str = ""
    # canonical key -> other spellings, in other transformers versions or in hub files
    aliases: dict[str, tuple[str, ...]] = {}
    # values of the family's config class for keys that a config.json may leave out
    defaults: dict[str, Any] = {}
    # config key -> groups of values that mean the same in different transformers versions
    spellings: dict[str, tuple[tuple[str, ...], ...]] = {}
    # keys read by training or loading code only, with the reason why inference may ignore them
    ignored: dict[str, str] = {}


class Slot(Section):
    """A place in a layer whose content depends on the layer: `select` is evaluated, `cases` names what stands there.

    A case names a block, an operator, or `skip` (the value passes unchanged).
    """

    select: Any
    cases: dict[str, str]


class Schedule(Section):
    """The layers: how many, the block each one is (a name or a slot), and the slots that blocks refer to."""

    layers: Any
    layer: str | Slot
    slots: dict[str, Slot] = {}

    @field_validator("slots")
    @classmethod
    def _slots_are_names(cls, slots: dict[str, Slot]) -> dict[str, Slot]:
        _named(slots)
        return slots


class Block(Section):
    """Straight-line steps from `takes` to `gives`."""

    doc: str = ""
    takes: tuple[str, ...]
    steps: tuple[str, ...]
    gives: tuple[str, ...]

    @field_validator("steps")
    @classmethod
    def _steps_parse(cls, steps: tuple[str, ...]) -> tuple[str, ...]:
        for text in steps:
            try:
                parse_step(text)
            except Day0Error as error:
                raise ValueError(f"{error.message}; {error.hint}") from error
        return steps

    @field_validator("takes", "gives")
    @classmethod
    def _ports_are_names(cls, ports: tuple[str, ...]) -> tuple[str, ...]:
        _named(ports)
        return ports


def _named(names: Iterable[str]) -> None:
    """Raises ValueError for a key that could not be a name in a package."""
    wrong = [name for name in names if not is_name(name)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no name: lower case letters, digits and _, and no Python keyword")


class Weights(Section):
    """Where operators' weights stand in the checkpoint, when their `from` does not say it.

    An operator's `from: self_attn.q_proj` reads each weight w at {here}.self_attn.q_proj.w; `from: "hc_attn_{weight}"`
    places the weight's name itself; a `from` that begins with {prefix} or / does not stand in a layer. `map` goes from
    "operator.weight" to a source (see day0.language.weights). `{prefix}` is the first entry of `prefix` that some
    tensor name begins with, `{here}` is `layer_prefix` with `{layer}` filled in.
    """

    prefix: tuple[str, ...] = ("model",)
    layer_prefix: str = "{prefix}.layers.{layer}"
    map: dict[str, Any] = {}
    # "operator.weight" names kept in float32 in a bf16 package, as the reference keeps them
    float32: tuple[str, ...] = ()


class Limits(Section):
    """Sizes the engine needs: ids below `vocab_size`, positions below `positions` (none: unbounded)."""

    vocab_size: Any
    positions: Any = None


class LeftOut(Section):
    """Tensors that are not part of the text model: a glob over names ({prefix}, {layers} filled in), and why."""

    pattern: str
    reason: str


class ReferenceNotes(Section):
    """What is known of the reference implementation."""

    # float32 arithmetic that its float64 run cannot avoid: the relative error it leaves (measured), 0 when none. It
    # widens what counts as equal, so it is bounded by what float32 can leave: 2^-24 = 6e-8 an operation, some in a row.
    float64_leak: float = Field(default=0.0, ge=0.0, le=1e-6)
    # checks of the reference against itself that it is known to fail, with the reason: they are excluded by name
    fails: dict[str, str] = {}
    # config keys that list some of the layers by number, with the number of the first layer
    layer_numbers: dict[str, int] = {}


class Recipe(Section):
    """One family of models."""

    RESERVED: ClassVar[frozenset[str]] = frozenset({"layers", "skip"})

    recipe: str
    paper: str = ""
    match: Match
    limits: Limits
    let: dict[str, Any] = {}
    model: Block
    schedule: Schedule
    blocks: dict[str, Block]
    operators: dict[str, dict[str, Any]]
    weights: Weights = Weights()
    left_out: tuple[LeftOut, ...] = ()
    reference: ReferenceNotes = ReferenceNotes()
    chat: Chat = Chat()

    @field_validator("blocks", "operators")
    @classmethod
    def _keys_are_names(cls, found: dict[str, Any]) -> dict[str, Any]:
        _named(found)
        return found

    @field_validator("operators")
    @classmethod
    def _operators_have_kinds(cls, operators: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, attributes in operators.items():
            if "kind" not in attributes:
                raise ValueError(f"operator {name} has no kind")
        return operators


def read_recipe(text: str, *, name: str) -> Recipe:
    """Parse and validate YAML. Raises Day0Error naming the file and the first thing wrong in it."""
    data = parse_yaml(text, name=name, hint="correct the recipe")
    if not isinstance(data, dict):
        raise Day0Error(f"{name} holds no mapping", hint="start from a recipe that day0 recipes lists")
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise Day0Error(f"{name}: {where}: {first['msg']}", hint="see docs/recipes.md") from error


def write_recipe(recipe: Recipe) -> str:
    """YAML that `read_recipe` reads back to an equal recipe; sections left at their defaults are not written."""
    data = json.loads(recipe.model_dump_json(exclude_defaults=True))
    return yaml.safe_dump(data, sort_keys=False, width=120, allow_unicode=True)


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 (hex) of a recipe as `write_recipe` writes it: comments and layout do not count."""
    return hashlib.sha256(write_recipe(recipe).encode()).hexdigest()


@cache
def shipped_recipes() -> Mapping[str, Recipe]:
    """All recipes that come with day0, by name. Parsed once: share them, do not change them."""
    found = {}
    for entry in sorted(files("day0.recipes").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".yaml"):
            recipe = read_recipe(entry.read_text(encoding="utf-8"), name=f"recipes/{entry.name}")
            found[recipe.recipe] = recipe
    return MappingProxyType(found)


def load_recipe(name_or_path: str) -> Recipe:
    """A shipped recipe by name, or any recipe file by path. Raises Day0Error listing the known names."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        try:
            return read_recipe(regular(path).read_text(encoding="utf-8"), name=str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise Day0Error(f"cannot read recipe {path}: {error}", hint="check the path") from error
    known = shipped_recipes()
    if name_or_path not in known:
        raise Day0Error(f"no recipe {name_or_path!r}", hint=f"shipped recipes: {', '.join(known)}")
    return known[name_or_path]


def find_recipe(config: dict[str, Any]) -> Recipe | None:
    """The shipped recipe whose model types hold the config's, or its text model's; None when there is none."""
    for recipe in shipped_recipes().values():
        if config.get("model_type") in recipe.match.model_types:
            return recipe
    return None


def respelled(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The config with its values in each other spelling that the family's recipe knows, the given one left out."""
    recipe = find_recipe(config)
    found: list[dict[str, Any]] = []
    if recipe is None:
        return found
    for key, groups in recipe.match.spellings.items():
        for wanted in sorted({word for group in groups for word in group}):
            same = next(group for group in groups if wanted in group)
            other = copy.deepcopy(config)
            place = text_config(recipe, other)
            if isinstance(place.get(key), list):
                place[key] = [wanted if value in same else value for value in place[key]]
            if other != config:
                found.append(other)
    return found


def text_config(recipe: Recipe, config: dict[str, Any]) -> dict[str, Any]:
    """The text model's part of a config: the sub-config in a multimodal wrapper, else the config itself.

    Raises Day0Error where that sub-config is no object.
    """
    key = recipe.match.text_config
    if not key or key not in config:
        return config
    inner = config[key]
    if not isinstance(inner, dict):
        raise Day0Error(f"{key} is {shown(inner)}, expected an object", hint="correct the config")
    return inner
