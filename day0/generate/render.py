"""A program as the source of a package's model.py."""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2

from day0 import __version__
from day0.errors import Day0Error
from day0.kernels.interface.kind import Kind
from day0.kernels.registry import get_kind, module_source
from day0.language.program import LAYERS, SKIP, OperatorUse, ParsedBlock, Program
from day0.language.steps import Step

_WIDTH = 120
_INDENT = 8  # of a statement inside a method


@dataclass(frozen=True)
class _Class:
    class_name: str
    doc: str
    takes: str  # the annotated ports
    returns: str
    init: tuple[str, ...]
    body: tuple[str, ...]


def render_model(program: Program, *, title: str, recipe_hash: str, config_hash: str) -> str:
    """The text of model.py: the classes of the kinds in use, one class a block, the schedule, and Model."""
    return _Renderer(program).render(title=title, recipe_hash=recipe_hash, config_hash=config_hash)


def environment() -> jinja2.Environment:
    """Templates under `templates/`; an undefined name in one is an error."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (files("day0.templates") / name).read_text(encoding="utf-8")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return env


class _Renderer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses: dict[str, list[OperatorUse]] = {}
        for use in program.uses():
            self.uses.setdefault(use.name, []).append(use)
        self.kinds = sorted({use.kind for use in program.uses()})
        self.slots = {slot for layer in program.layers for slot in layer.slots}
        self.in_slots = {content for layer in program.layers for content in layer.slots.values()}
        self.tables: dict[str, str] = {}
        taken = {camel(kind) for kind in self.kinds} | {"Model", "Package", "Skip", "Tensor", "Batch", "Memory"}
        self.class_names: dict[str, str] = {}
        for name in (*program.blocks, *(n for n in self.in_slots if n in self.uses)):
            wanted = camel(name)
            self.class_names[name] = f"{wanted}Block" if wanted in taken else wanted

    def render(self, *, title: str, recipe_hash: str, config_hash: str) -> str:
        used = [b for b in self.program.blocks.values() if self._stands_somewhere(b.name)]
        # A class is defined before the blocks that hold it; slots are looked up at run time, so their order is free.
        blocks = [self._block(block) for block in _callees_first(used)]
        blocks[:0] = [self._block(self._wrapped(name)) for name in sorted(self.in_slots) if name in self.uses]
        sources = [module_source(kind).strip() for kind in self.kinds]
        model = self.program.model
        title = _plain(title)
        text = (
            environment()
            .get_template("model.py.j2")
            .render(
                title=title,
                version=__version__,
                recipe=_plain(self.program.recipe.recipe),
                recipe_hash=recipe_hash,
                config_hash=config_hash,
                needs_torch=any("torch." in source for source in sources),
                kinds=sources,
                blocks=blocks,
                tables=self.tables,
                uses_skip=SKIP in self.in_slots,
                schedule=[self._schedule_entry(i) for i in range(len(self.program.layers))],
                model=_Class(
                    "Model",
                    _sentence(model.doc or f"{title}: token ids to logits"),
                    "",
                    "Tensor",
                    (*self._inits(model, outer=True), *self._layer_list()),
                    (f"{model.takes[0]} = batch.token_ids", *self._body(model)),
                ),
                vocab_size=self.program.vocab_size,
                max_positions=self.program.positions,
            )
        )
        return text.rstrip() + "\n"

    def _stands_somewhere(self, block: str) -> bool:
        called = {s.callee for b in self.program.blocks.values() for s in b.steps}
        return block in self.in_slots | called | {layer.block for layer in self.program.layers}

    def _wrapped(self, name: str) -> ParsedBlock:
        """An operator that stands in a slot by itself, as a block of one step."""
        kind = get_kind(self.uses[name][0].kind)
        method = kind.methods[""]
        outputs = method.output_names(self.uses[name][0].attributes)
        return ParsedBlock(name, kind.summary, method.inputs, (Step(outputs, name, "", method.inputs),), outputs)

    def _block(self, block: ParsedBlock) -> _Class:
        returns = "Tensor" if len(block.gives) == 1 else f"tuple[{', '.join(['Tensor'] * len(block.gives))}]"
        body = (*self._body(block), f"return {', '.join(block.gives)}")
        doc = _sentence(block.doc or f"the block {block.name}")
        takes = ", ".join(f"{t}: Tensor" for t in block.takes)
        return _Class(self.class_names[block.name], doc, takes, returns, tuple(self._inits(block)), _fold_return(body))

    def _inits(self, block: ParsedBlock, outer: bool = False) -> list[str]:
        lines: list[str] = []
        for name in dict.fromkeys(step.callee for step in block.steps):
            if name == LAYERS:
                continue
            if name in self.slots:
                lines.append(f'self.{name} = LAYERS[layer]["{name}"](layer)')
            elif name in self.program.blocks:
                lines.append(f"self.{name} = {self.class_names[name]}(layer)")
            else:
                path = f'"{name}"' if outer else f'f"layers.{{layer}}.{name}"'
                lines += self._construct(name, path)
        return lines

    def _construct(self, name: str, path: str) -> list[str]:
        uses = self.uses[name]
        kind = uses[0].kind
        arguments = [path]
        for field, info in type(uses[0].attributes).model_fields.items():
            values = {use.layer: getattr(use.attributes, field) for use in uses}
            distinct = list(dict.fromkeys(values.values()))
            if len(distinct) > 1:
                table = f"{name}_{field}".upper()
                count = len(self.program.layers)
                self.tables[table] = _literal(tuple(values.get(i) for i in range(count)))
                arguments.append(f"{field}={table}[layer]")
            elif info.is_required() or distinct[0] != info.default:
                arguments.append(f"{field}={_literal(distinct[0])}")
        return _wrap(f"self.{name} = {camel(kind)}", arguments)

    def _layer_list(self) -> list[str]:
        return ['self.layers = nn.ModuleList(entry["layer"](index) for index, entry in enumerate(LAYERS))']

    def _body(self, block: ParsedBlock) -> list[str]:
        lines: list[str] = []
        for step in block.steps:
            targets = ", ".join(step.targets)
            if block is self.program.model and step is block.steps[-1] and self._by_rows(step):
                # The output table is the widest product: only rows that somebody asks for go through it.
                lines += [f"{x} = batch.asked_rows({x})" for x in step.arguments]
            if step.callee == LAYERS:
                lines.append("for layer in self.layers:")
                lines.append(f"    {targets} = layer({', '.join((*step.arguments, 'batch', 'memory'))})")
                continue
            method = f".{step.method}" if step.method else ""
            arguments = (*step.arguments, *self._context(step))
            lines += _wrap(f"{targets} = self.{step.callee}{method}", list(arguments))
        if block is self.program.model:
            if not self._by_rows(block.steps[-1]):
                lines += [f"{x} = batch.asked_rows({x})" for x in block.gives]
            lines.append(f"return {', '.join(block.gives)}")
            return list(_fold_return(tuple(lines)))
        return lines

    def _by_rows(self, step: Step) -> bool:
        """Whether the step makes each row of its result of the same row alone."""
        return step.callee in self.uses and not self._context(step)

    def _context(self, step: Step) -> tuple[str, ...]:
        if step.callee in self.slots or step.callee in self.program.blocks:
            return ("batch", "memory")
        kind: Kind[Any] = get_kind(self.uses[step.callee][0].kind)
        return tuple(f"{name}={name}" for name in kind.context)

    def _schedule_entry(self, index: int) -> str:
        layer = self.program.layers[index]
        entry = {"layer": self.class_names[layer.block]}
        entry |= {slot: "Skip" if c == SKIP else self.class_names[c] for slot, c in layer.slots.items()}
        return "{" + ", ".join(f'"{slot}": {name}' for slot, name in entry.items()) + "}"


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _sentence(text: str) -> str:
    text = _plain(" ".join(text.split()))
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _plain(text: str) -> str:
    """Words from outside (a folder's name, a recipe's doc) without what could end a docstring."""
    return "".join(c for c in text if c.isprintable() and c not in '"\\')


def _literal(value: Any) -> str:
    """Python source of an attribute's value. Raises Day0Error for what has none (infinity, NaN, an object)."""
    source = json.dumps(value) if isinstance(value, str) else repr(value)
    try:
        ast.literal_eval(source)
    except ValueError:
        raise Day0Error(f"{source} cannot be written into a package", hint="check the config's values") from None
    return source


def _wrap(head: str, arguments: list[str]) -> list[str]:
    """`head(arguments)` on one line, or one argument a line when it is too long."""
    line = f"{head}({', '.join(arguments)})"
    if len(line) + _INDENT <= _WIDTH:
        return [line]
    return [f"{head}(", *(f"    {argument}," for argument in arguments), ")"]


def _fold_return(lines: tuple[str, ...]) -> tuple[str, ...]:
    """`y = f(x)` followed by `return y` becomes `return f(x)`."""
    if len(lines) >= 2 and lines[-1].startswith("return ") and lines[-2].startswith(f"{lines[-1][7:]} = "):
        return (*lines[:-2], f"return {lines[-2].partition(' = ')[2]}")
    return lines


def _callees_first(blocks: list[ParsedBlock]) -> list[ParsedBlock]:
    by_name: Mapping[str, ParsedBlock] = {block.name: block for block in blocks}
    ordered: list[ParsedBlock] = []

    def visit(block: ParsedBlock) -> None:
        for step in block.steps:
            if step.callee in by_name and by_name[step.callee] not in ordered:
                visit(by_name[step.callee])
        if block not in ordered:
            ordered.append(block)

    for block in blocks:
        visit(block)
    return ordered
