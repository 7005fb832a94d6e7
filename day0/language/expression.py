"""The expressions a recipe may hold: arithmetic, comparison, index, a few functions, if-else, over config keys.

`$config.hidden_size`, `$heads * dim`, `$config.layer_types[layer]`, `$default(config.scale, 1.0)`: text after a `$` is
parsed with Python's grammar and evaluated by the whitelist below. Nothing is ever executed as code.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from day0.errors import Day0Error
from day0.language.config_view import CHECK_VALUE, ConfigFault, ConfigView, MissingKey, read_from, shown
from day0.language.operations import (
    ARITHMETIC,
    COMPARE,
    FUNCTIONS,
    LIST,
    Unfit,
    arithmetic,
    compare,
    entry,
    negative,
    truth,
)

_MAX_LENGTH = 500  # characters: a recipe's longest expression is far below; bounds the work of parsing
_LAYER = "layer"


class Scope:
    """What names mean inside an expression: `config.<key>`, and plain names (`layer`, the recipe's `let`)."""

    def __init__(self, config: ConfigView, names: Mapping[str, Any] | None = None) -> None:
        self.config = config
        self.names = dict(names or {})
        self._raw: dict[str, Any] = {}  # of the names that `let` defined

    def with_names(self, **names: Any) -> "Scope":
        inner = Scope(self.config, self.names | names)
        inner._raw = self._raw
        return inner

    def let(self, name: str, raw: Any) -> None:
        """Give `name` the value of `raw`."""
        self.names[name] = self.value(raw)
        self._raw[name] = raw

    def value(self, raw: Any) -> Any:
        """Evaluate a recipe value: expressions in strings that begin with `$`, inside lists and maps too."""
        if isinstance(raw, str):
            return self.evaluate(raw[1:]) if raw.startswith("$") else raw
        if isinstance(raw, list | tuple):
            return [self.value(item) for item in raw]
        if isinstance(raw, Mapping):
            return {key: self.value(item) for key, item in raw.items()}
        return raw

    def evaluate(self, text: str) -> Any:
        """Evaluate one expression. Raises Day0Error naming the expression and what is wrong with it."""
        try:
            return self._node(_parse(text))
        except ConfigFault:  # it needs no expression to be understood
            raise
        except Day0Error as error:
            raise type(error)(f"in ${text}: {error.message}", hint=error.hint) from error
        except RecursionError as error:
            raise Day0Error(f"in ${text}: nested too deeply", hint="name its parts in let") from error

    def keys(self, raw: Any) -> dict[str, Any]:
        """The config keys that a recipe value may read, also through `let`, as the config spells them, with values."""
        found: dict[str, Any] = {}
        for node in self._nodes(raw):
            if isinstance(node, ast.Attribute):
                try:
                    key = _dotted(node)
                    found[self.config.spelling(key)] = self.config.get(key)
                except Day0Error:  # a key that is not there is no reason for anything
                    continue
            elif isinstance(node, ast.Name) and node.id in self._raw:
                found |= self.keys(self._raw[node.id])
        return found

    def _nodes(self, raw: Any) -> Iterator[ast.AST]:
        if isinstance(raw, str) and raw.startswith("$"):
            yield from _outermost(_parse(raw[1:]))
        elif isinstance(raw, list | tuple | Mapping):
            for item in raw.values() if isinstance(raw, Mapping) else raw:
                yield from self._nodes(item)

    def _node(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute():
                return self.config.get(_dotted(node))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in ARITHMETIC:
                return self._apply(partial(arithmetic, sign), left, right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._apply(negative, operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._apply(truth, operand)
            case ast.BoolOp(op=word, values=[*tested, last]):
                for value in tested:
                    if self._apply(truth, value) == isinstance(word, ast.Or):
                        return isinstance(word, ast.Or)
                return self._node(last)
            case ast.Compare(left=left, ops=[relation], comparators=[right]) if type(relation) in COMPARE:
                return self._apply(partial(compare, relation), left, right)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._node(body) if self._apply(truth, test) else self._node(orelse)
            case ast.Subscript(value=value, slice=index):
                return self._entry(value, index)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._node(item) for item in items]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(name, args)
        raise Day0Error(
            f"{ast.unparse(node)!r} is outside the recipe grammar",
            hint="use arithmetic, comparison, index, if-else and the functions of docs/recipes.md",
        )

    def _apply(self, function: Callable[..., Any], *operands: ast.expr) -> Any:
        values = [self._node(operand) for operand in operands]
        try:
            return function(*values)
        except Unfit as unfit:
            node, value = operands[unfit.operand], shown(values[unfit.operand])
            key = self._key(node)
            if key is not None:
                raise ConfigFault(f"{key} is {value}, expected {unfit.expected}", hint=CHECK_VALUE) from unfit
            origin = read_from(self.keys(f"${ast.unparse(node)}"))
            raise Day0Error(
                f"{ast.unparse(node)} is {value}{origin}, expected {unfit.expected}", hint=CHECK_VALUE
            ) from unfit
        except OverflowError as error:
            raise Day0Error("a number too large", hint="check the config values it reads") from error

    def _key(self, node: ast.expr) -> str | None:
        """The config key that an operand is, as the config spells it, also where a name of `let` stands for it."""
        match node:
            case ast.Attribute():
                return self.config.spelling(_dotted(node))
            case ast.Name(id=name) if isinstance(raw := self._raw.get(name), str) and raw.startswith("$"):
                return self._key(_parse(raw[1:]))
            case ast.Call(func=ast.Name(id="default"), args=[wanted, _]):
                return self._key(wanted)
            case ast.Subscript(value=value, slice=index):
                key = self._key(value)
                return f"{key}[{self._node(index)}]" if key is not None else None
        return None

    def _entry(self, values: ast.expr, index: ast.expr) -> Any:
        held = self._node(values)
        if held is None:
            raise MissingKey(f"{self._key(values) or ast.unparse(values)} is null, expected {LIST}", hint=CHECK_VALUE)
        if isinstance(values, ast.Attribute) and isinstance(index, ast.Name) and index.id == _LAYER:
            if isinstance(held, list | tuple):
                self.config.check_length(_dotted(values), list(held))
        return self._apply(entry, values, index)

    def _name(self, name: str) -> Any:
        if name not in self.names:
            known = ", ".join(sorted(self.names)) or "none"
            raise Day0Error(f"unknown name {name!r}", hint=f"known: {known}; config keys are written config.<key>")
        return self.names[name]

    def _call(self, name: str, arguments: list[ast.expr]) -> Any:
        if name == "default" and len(arguments) == 2:
            try:
                value = self._node(arguments[0])
            except MissingKey:
                value = None
            return self._node(arguments[1]) if value is None else value
        if name in FUNCTIONS:
            fewest, most, function = FUNCTIONS[name]
            if fewest <= len(arguments) <= most:
                return self._apply(function, *arguments)
        raise Day0Error(
            f"unknown function or wrong number of arguments: {name}",
            hint="len, min, max, int, sqrt, ln, first, index(list, item), default(config.key, value), repeat(list, n)",
        )


def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise Day0Error(f"expression of {len(text)} characters", hint=f"keep it under {_MAX_LENGTH}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise Day0Error(f"cannot parse this expression ({reason})", hint="see docs/recipes.md") from error


def _outermost(node: ast.AST) -> Iterator[ast.AST]:
    """Names and whole dotted keys below a node: not `config` by itself, nor the beginning of a key."""
    if isinstance(node, ast.Attribute | ast.Name):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outermost(child)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "config"):
        raise Day0Error(f"{ast.unparse(node)!r} has no keys", hint="config keys are written config.<key>")
    return ".".join(reversed(parts))
