"""The expressions a recipe may hold: arithmetic, comparison, index, a few functions, if-else, over config keys.

`$config.hidden_size`, `$heads * dim`, `$config.layer_types[layer]`, `$default(config.scale, 1.0)`: text after a `$` is
parsed with Python's grammar and evaluated by the whitelist below. Nothing is ever executed as code.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from day0.errors import Day0Error

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_MAX_LENGTH = 500  # characters: a recipe's longest expression is far below; bounds the work of parsing
_MAX_ITEMS = 100_000  # of a repeated list: far above any number of layers


class MissingKey(Day0Error):
    """A config key that the config does not have."""


class ConfigView:
    """A config whose reads are recorded: what a recipe consumed, by dotted key.

    Keys absent from the config are looked up among `aliases` (canonical -> other spellings), then `defaults`.
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

    def get(self, dotted: str) -> Any:
        """The value of "a.b.c". Raises MissingKey."""
        for spelling in (dotted, *self.aliases.get(dotted, ())):
            found, value = self._walk(spelling)
            if found:
                self.read[spelling] = value
                return value
        if dotted in self.defaults:
            self.defaulted.add(dotted)
            return self.defaults[dotted]
        raise MissingKey(
            f"the config has no key {dotted!r}", hint="check the config, or give the recipe an alias or default for it"
        )

    def _walk(self, dotted: str) -> tuple[bool, Any]:
        value: Any = self.config
        for part in dotted.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return False, None
            value = value[part]
        return True, value


class Scope:
    """What names mean inside an expression: `config.<key>`, and plain names (`layer`, the recipe's `let`)."""

    def __init__(self, config: ConfigView, names: Mapping[str, Any] | None = None) -> None:
        self.config = config
        self.names = dict(names or {})

    def with_names(self, **names: Any) -> "Scope":
        return Scope(self.config, self.names | names)

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
        if len(text) > _MAX_LENGTH:
            raise Day0Error(f"expression of {len(text)} characters", hint=f"keep it under {_MAX_LENGTH}")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Day0Error(f"cannot parse expression ${text}: {error}", hint="see docs/recipes.md") from error
        try:
            return self._node(tree.body)
        except Day0Error as error:
            raise type(error)(f"in ${text}: {error.message}", hint=error.hint) from error
        except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError, OverflowError) as error:
            raise Day0Error(
                f"in ${text}: {type(error).__name__}: {error}", hint="check the config values it reads"
            ) from error

    def _node(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute():
                return self.config.get(_dotted(node))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._binary(op, self._node(left), self._node(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._node(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._node(operand)
            case ast.BoolOp(op=op, values=values):
                result = self._node(values[0])
                for value in values[1:]:
                    if bool(result) == isinstance(op, ast.Or):
                        return result
                    result = self._node(value)
                return result
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return _COMPARE[type(op)](self._node(left), self._node(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._node(body) if self._node(test) else self._node(orelse)
            case ast.Subscript(value=value, slice=index):
                return self._node(value)[self._node(index)]
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._node(item) for item in items]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(name, args)
        raise Day0Error(
            f"{ast.unparse(node)!r} is outside the recipe grammar",
            hint="use arithmetic, comparison, index, if-else and the functions of docs/recipes.md",
        )

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Pow) and abs(right) > 64:
            raise Day0Error(f"exponent {right}", hint="exponents beyond 64 are refused")
        if isinstance(op, ast.Mult) and not (_number(left) and _number(right)):
            raise Day0Error("a product of things that are no numbers", hint="use repeat(list, length) for lists")
        return _BINARY[type(op)](left, right)

    def _name(self, name: str) -> Any:
        if name not in self.names:
            known = ", ".join(sorted(self.names)) or "none"
            raise Day0Error(f"unknown name {name!r}", hint=f"known: {known}; config keys are written config.<key>")
        return self.names[name]

    def _call(self, name: str, args: list[ast.expr]) -> Any:
        if name == "default" and len(args) == 2:
            try:
                return self._node(args[0])
            except MissingKey:
                return self._node(args[1])
        values = [self._node(a) for a in args]
        if name == "len" and len(values) == 1:
            return len(values[0])
        if name in ("min", "max") and values:
            return (min if name == "min" else max)(*values)
        if name == "int" and len(values) == 1:
            return int(values[0])
        if name in ("sqrt", "ln") and len(values) == 1:
            return (math.sqrt if name == "sqrt" else math.log)(values[0])
        if name == "first" and len(values) == 1:
            return values[0][0] if isinstance(values[0], list | tuple) else values[0]
        if name == "index" and len(values) == 2:
            return list(values[0]).index(values[1])
        if name == "repeat" and len(values) == 2:
            pattern, length = list(values[0]), int(values[1])
            if not pattern or not 0 <= length <= _MAX_ITEMS:
                raise Day0Error(f"repeat of {len(pattern)} items to length {length}", hint="give a list and a length")
            return [pattern[i % len(pattern)] for i in range(length)]
        raise Day0Error(
            f"unknown function or wrong number of arguments: {name}",
            hint="len, min, max, int, sqrt, ln, first, index(list, item), default(config.key, value), repeat(list, n)",
        )


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "config"):
        raise Day0Error(f"{ast.unparse(node)!r} has no keys", hint="config keys are written config.<key>")
    return ".".join(reversed(parts))
