"""A recipe applied to a config: which operators, with which attributes, stand in which layer, joined by which steps."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from day0.errors import Day0Error
from day0.kernels.interface.attributes import Attributes
from day0.kernels.interface.kind import Kind
from day0.kernels.registry import get_kind
from day0.language.config_view import CHECK_VALUE, ConfigFault, ConfigView, MissingKey, read_from, shown
from day0.language.expression import Scope
from day0.language.faults import attribute_fault
from day0.language.recipe import Block, Recipe, Slot, text_config
from day0.language.steps import Step, parse_step
from day0.language.weights import Resolved, fill, resolve_source

SKIP = "skip"
LAYERS = "layers"
MAX_LAYERS = 10_000  # bounds the work of a config that is wrong


@dataclass(frozen=True)
class OperatorUse:
    """An operator at one place: `layer` is None outside the layers. `path` is its name in a package."""

    name: str
    block: str
    kind: str
    attributes: Attributes
    layer: int | None
    weights: Mapping[str, Resolved]  # canonical weight -> resolved source
    float32: frozenset[str] = frozenset()  # canonical weights the recipe keeps in float32

    @property
    def path(self) -> str:
        return self.name if self.layer is None else f"layers.{self.layer}.{self.name}"


@dataclass(frozen=True)
class Layer:
    """One layer: the block it is, what stands in each slot (a block, an operator, or "skip"), and its operators."""

    index: int
    block: str
    slots: Mapping[str, str]
    operators: Mapping[str, OperatorUse]

    def describe(self) -> str:
        return " + ".join(v for v in self.slots.values() if v != SKIP) or self.block


@dataclass(frozen=True)
class ParsedBlock:
    name: str
    doc: str
    takes: tuple[str, ...]
    steps: tuple[Step, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """The whole model as operators and steps."""

    recipe: Recipe
    config: dict[str, Any]  # of the text model
    vocab_size: int
    positions: int | None
    left_out: Mapping[str, str]  # glob over tensor names -> reason
    model: ParsedBlock
    blocks: Mapping[str, ParsedBlock]
    outer: Mapping[str, OperatorUse]
    layers: tuple[Layer, ...]
    reads: Mapping[str, Any] = field(default_factory=dict)  # config keys the recipe consumed -> value
    defaulted: frozenset[str] = frozenset()

    def uses(self) -> list[OperatorUse]:
        """Every operator at every place, in the order of execution of blocks: outer ones, then layer by layer."""
        return [*self.outer.values(), *(use for layer in self.layers for use in layer.operators.values())]


def apply_recipe(
    recipe: Recipe, config: Mapping[str, Any], tensors: Collection[str] = (), *, layers: int | None = None
) -> Program:
    """Evaluate a recipe on a config.

    `tensors`: names in the checkpoint, which choose between the recipe's alternative spellings. `layers` cuts the
    model to its first layers. Raises Day0Error naming the recipe, the operator and the attribute that is wrong.
    """
    view = ConfigView({}, aliases=recipe.match.aliases, defaults=recipe.match.defaults)
    try:
        view.config = text_config(recipe, dict(config))
        return _Builder(recipe, view, frozenset(tensors)).build(layers)
    except Day0Error as error:
        also = _unwrapped(recipe, view, error)
        raise type(error)(f"recipe {recipe.recipe}: {error.message}{also}", hint=error.hint) from error


def _unwrapped(recipe: Recipe, view: ConfigView, error: Day0Error) -> str:
    """What else explains that not one key was found: the sub-config that would hold them is missing."""
    key = recipe.match.text_config
    missing = isinstance(error, MissingKey) and key and not view.read and key not in view.config
    return f", nor a {key!r} that would hold it" if missing else ""


class _Builder:
    def __init__(self, recipe: Recipe, view: ConfigView, tensors: frozenset[str]) -> None:
        self.recipe = recipe
        self.view = view
        self.tensors = tensors
        self.scope = Scope(view)
        for name, raw in recipe.let.items():
            with _named(f"let {name}"):
                self.scope.let(name, raw)
        self.blocks = {name: _parse_block(name, block) for name, block in recipe.blocks.items()}
        self.prefix = next((p for p in recipe.weights.prefix if _is_prefix(p, tensors)), recipe.weights.prefix[0])

    def build(self, cut: int | None) -> Program:
        self._check_names()
        schedule = self.recipe.schedule
        count_all = self._count("schedule.layers", schedule.layers, MAX_LAYERS)
        self.view.layers = count_all, ", ".join(self.scope.keys(schedule.layers)) or "schedule.layers"
        count = count_all if cut is None else min(count_all, cut)
        model = _parse_block("model", self.recipe.model)
        outer = {name: self._use(name, "model", None) for name in self._operators_of(model)}
        layers = tuple(self._layer(i) for i in range(count))
        self._check_steps(model, {}, outer)
        for layer in layers:
            self._check_steps(self.blocks[layer.block], layer.slots, layer.operators)
            for content in set(layer.slots.values()) & set(self.blocks):
                self._check_steps(self.blocks[content], layer.slots, layer.operators)
        used = set(outer) | {name for layer in layers for name in layer.operators}
        unused = set(self.recipe.operators) - used if cut is None else set()
        # An operator of a case that this config never selects is no mistake; one that no step names is.
        named = {s.callee for b in (model, *self.blocks.values()) for s in b.steps}
        named |= {c for slot in schedule.slots.values() for c in slot.cases.values()}
        lost = sorted(unused - named)
        if lost:
            raise Day0Error(f"operators no step uses: {', '.join(lost)}", hint="use them in a block or remove them")
        positions = self.scope.value(self.recipe.limits.positions)
        return Program(
            recipe=self.recipe,
            config=dict(self.view.config),
            vocab_size=self._count("limits.vocab_size", self.recipe.limits.vocab_size),
            positions=None if positions is None else self._count("limits.positions", self.recipe.limits.positions),
            left_out={
                fill(entry.pattern, {"prefix": self.prefix, "layers": count_all}): entry.reason
                for entry in self.recipe.left_out
            },
            model=model,
            blocks=self.blocks,
            outer=outer,
            layers=layers,
            reads=dict(self.view.read),
            defaulted=frozenset(self.view.defaulted),
        )

    def _check_names(self) -> None:
        spaces = [set(self.recipe.operators), set(self.recipe.blocks), set(self.recipe.schedule.slots)]
        spaces.append(set(self.recipe.RESERVED))
        for i, a in enumerate(spaces):
            for b in spaces[i + 1 :]:
                if a & b:
                    raise Day0Error(
                        f"the name {sorted(a & b)[0]!r} is used twice",
                        hint="operators, blocks and slots share names",
                    )
        for key in (*self.recipe.weights.map, *self.recipe.weights.float32):
            operator, _, weight = key.partition(".")
            if operator not in self.recipe.operators or not weight:
                raise Day0Error(f"weights: {key!r} is no operator.weight", hint="correct the weights section")

    def _count(self, name: str, raw: Any, most: int | None = None) -> int:
        """A config's word for a number of things. Raises Day0Error when it is no whole number from 1 to `most`."""
        value = self.scope.value(raw)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
            bound = f" up to {most}" if most is not None else ""
            origin = read_from(self.scope.keys(raw))
            raise ConfigFault(
                f"{name} is {shown(value)}{origin}, expected a positive whole number{bound}", hint=CHECK_VALUE
            )
        return value

    def _layer(self, index: int) -> Layer:
        scope = self.scope.with_names(layer=index)
        schedule = self.recipe.schedule
        block = schedule.layer if isinstance(schedule.layer, str) else _choose("layer", schedule.layer, scope)
        if block not in self.blocks:
            raise Day0Error(f"layer {index} is block {block!r}, which is not defined", hint="add it to blocks")
        needed = _callees(self.blocks[block])
        slots: dict[str, str] = {}
        queue = [name for name in needed if name in schedule.slots]
        while queue:
            slot = queue.pop(0)
            content = _choose(slot, schedule.slots[slot], scope)
            if content != SKIP and content not in self.blocks and content not in self.recipe.operators:
                raise Day0Error(f"slot {slot}: {content!r} is no block and no operator", hint="define it")
            slots[slot] = content
            inner = _callees(self.blocks[content]) if content in self.blocks else []
            queue += [name for name in inner if name in schedule.slots and name not in slots]
        operators: dict[str, OperatorUse] = {}
        for parsed in self._reachable(self.blocks[block], slots):
            for name in self._operators_of(parsed, slots):
                operators[name] = self._use(name, parsed.name, index)
        return Layer(index, block, slots, operators)

    def _reachable(self, block: ParsedBlock, slots: Mapping[str, str]) -> list[ParsedBlock]:
        """The block and the blocks it calls, directly or through slots, each once, callees after their caller."""
        found, queue = [], [block]
        while queue:
            current = queue.pop(0)
            if current in found:
                continue
            found.append(current)
            targets = [slots.get(name, name) for name in _callees(current)]
            queue += [self.blocks[t] for t in targets if t in self.blocks]
        return found

    def _operators_of(self, block: ParsedBlock, slots: Mapping[str, str] | None = None) -> list[str]:
        targets = [(slots or {}).get(name, name) for name in _callees(block)]
        return [t for t in targets if t in self.recipe.operators]

    def _use(self, name: str, block: str, layer: int | None) -> OperatorUse:
        raw = dict(self.recipe.operators[name])
        base = raw.pop("from", "")
        scope = self.scope if layer is None else self.scope.with_names(layer=layer)
        try:
            kind: Kind[Any] = get_kind(raw.pop("kind"))
        except KeyError as error:
            raise Day0Error(f"operator {name}: {error.args[0]}", hint="day0 kernels lists the kinds") from error
        values: dict[str, Any] = {}
        for key, value in raw.items():
            with _named(f"operator {name}: {key}"):
                values[key] = scope.value(value)
        try:
            attributes = kind.parse(values)
        except ValidationError as error:
            raise attribute_fault(f"operator {name} ({kind.name})", error, raw, scope) from error
        owned = kind.weights(attributes)
        here = fill(self.recipe.weights.layer_prefix, {"prefix": self.prefix, "layer": layer})
        names = {"prefix": self.prefix, "here": here, "layer": layer}
        sources: dict[str, Resolved] = {}
        for weight in owned:
            key = f"{name}.{weight}"
            if key in self.recipe.weights.map:
                source = self.recipe.weights.map[key]
            elif base:
                source = module_pattern(base, weight)
            else:
                raise Day0Error(
                    f"nothing says where the checkpoint holds {key}", hint="give the operator a from, or weights.map it"
                )
            with _named(f"weights of {key}"):
                sources[weight] = resolve_source(source, scope, names, self.tensors)
        kept = frozenset(w for w in owned if f"{name}.{w}" in self.recipe.weights.float32)
        return OperatorUse(name, block, kind.name, attributes, layer, sources, kept)

    def _check_steps(self, block: ParsedBlock, slots: Mapping[str, str], operators: Mapping[str, OperatorUse]) -> None:
        known = set(block.takes)
        for step in block.steps:
            unknown = [a for a in step.arguments if a not in known]
            if unknown:
                raise Day0Error(f"block {block.name}: {step}: {unknown[0]!r} has no value yet", hint="order the steps")
            self._check_call(block, step, slots, operators)
            known |= set(step.targets)
        lost = [g for g in block.gives if g not in known]
        if lost:
            raise Day0Error(f"block {block.name} gives {lost[0]!r}, which no step makes", hint="correct gives")

    def _check_call(
        self, block: ParsedBlock, step: Step, slots: Mapping[str, str], operators: Mapping[str, OperatorUse]
    ) -> None:
        target = slots.get(step.callee, step.callee)
        if target in (SKIP, LAYERS):
            arguments, least, results = len(step.arguments), len(step.arguments), len(step.arguments)
        elif target in self.blocks:
            arguments = least = len(self.blocks[target].takes)
            results = len(self.blocks[target].gives)
        elif target in operators:
            use = operators[target]
            kind = get_kind(use.kind)
            if step.method not in kind.methods:
                known = ", ".join(repr(m) for m in kind.methods)
                raise Day0Error(f"block {block.name}: {step}: no method {step.method!r}", hint=f"methods: {known}")
            method = kind.methods[step.method]
            least = len(method.inputs)
            arguments = least + len(method.optional_inputs)
            try:
                results = len(method.output_names(use.attributes))
            except ValueError as error:  # a method that operators with these attributes do not have
                raise Day0Error(f"block {block.name}: {step}: {error}", hint="correct the step") from error
        else:
            raise Day0Error(f"block {block.name}: {step}: nothing is called {step.callee!r}", hint="define it")
        if not least <= len(step.arguments) <= arguments or len(step.targets) != results:
            raise Day0Error(
                f"block {block.name}: {step}: {target} takes {least} to {arguments} values and gives {results}",
                hint="correct the step",
            )


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Says what was evaluated when it fails."""
    try:
        yield
    except Day0Error as error:
        raise type(error)(f"{what}: {error.message}", hint=error.hint) from error


def _parse_block(name: str, block: Block) -> ParsedBlock:
    return ParsedBlock(name, block.doc, block.takes, tuple(parse_step(s) for s in block.steps), block.gives)


def module_pattern(base: str, weight: str) -> str:
    """An operator's `from`: a module's name below {here}, or a pattern with braces of its own."""
    whole = base if "{weight}" in base else f"{base}.{{weight}}"
    anchored = whole if whole.startswith(("{prefix}", "{here}", "/")) else f"{{here}}.{whole}"
    return anchored.removeprefix("/").replace("{weight}", weight)


def _callees(block: ParsedBlock) -> list[str]:
    """Names a block calls, each once, in order."""
    return list(dict.fromkeys(step.callee for step in block.steps))


def _choose(name: str, slot: Slot, scope: Scope) -> str:
    value = scope.value(slot.select)
    key = value if isinstance(value, str) else shown(value)
    if key not in slot.cases:
        origin = read_from({k: v for k, v in scope.keys(slot.select).items() if not isinstance(v, list)})
        raise Day0Error(
            f"slot {name} at layer {scope.names['layer']}: no case for {key!r}{origin}",
            hint=f"cases: {', '.join(slot.cases)}",
        )
    return slot.cases[key]


def _is_prefix(prefix: str, tensors: frozenset[str]) -> bool:
    return any(t.startswith(f"{prefix}.") for t in tensors) if prefix else bool(tensors)
