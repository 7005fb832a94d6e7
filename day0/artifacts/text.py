"""Reads YAML and JSON that people write: a key given twice, and nesting without end, are errors and not surprises."""

import json
from collections.abc import Callable
from typing import Any

import yaml

from day0.errors import Day0Error

MAX_DEPTH = 100  # levels of nesting; the deepest recipe has about ten
MAX_VALUES = 1_000_000  # with every alias written out; the largest plan has some ten thousand


def parse_yaml(text: str, *, name: str, hint: str) -> Any:
    """The one document in `text`, as plain data.

    Raises Day0Error naming the file and the line: no YAML, a key given twice, an alias inside of what it names, more
    than MAX_DEPTH levels or MAX_VALUES values.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        reason = error.problem or error.context or "not readable"
        raise Day0Error(f"{name} is not YAML: {where}{reason}", hint=hint) from error
    except (yaml.YAMLError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        # What PyYAML lets through of a value that is none of its type (`!!int x`, a month 13), or of odd characters.
        raise Day0Error(f"{name} is not YAML: {' '.join(str(error).split())[:200]}", hint=hint) from error


class _Loader(yaml.SafeLoader):
    """SafeLoader with bounds. PyYAML takes the last of equal keys, and follows nesting until Python gives up."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}  # id of a complete node -> values in it, aliases written out
        self._kept: list[yaml.Node] = []  # keeps the ids above in use

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        peek: Callable[[], Any] = self.peek_event
        event = peek()
        if isinstance(event, yaml.AliasEvent):
            aliased = super().compose_node(parent, index)
            if id(aliased) not in self._sizes:
                raise _fault(event.start_mark, f"*{event.anchor} stands inside of what it names")
            return aliased
        if self._depth >= MAX_DEPTH:
            raise _fault(event.start_mark, f"nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            size = self._size(node)
            if size > MAX_VALUES:
                raise _fault(event.start_mark, f"aliases make it more than {MAX_VALUES} values")
            self._sizes[id(node)] = size
            self._kept.append(node)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            spelled = key.tag, key.value
            if spelled in first:
                raise _fault(key.start_mark, f"the key {key.value!r} stands in line {first[spelled]} already")
            first[spelled] = key.start_mark.line + 1
        return node

    def _size(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.MappingNode):
            return 1 + sum(self._sizes[id(part)] for pair in node.value for part in pair)
        if isinstance(node, yaml.SequenceNode):
            return 1 + sum(self._sizes[id(part)] for part in node.value)
        return 1


def _fault(mark: Any, what: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=mark)


class UnusableJsonError(ValueError):
    """JSON that says nothing certain: a key given twice, NaN."""


def parse_json(text: str, *, name: str, hint: str) -> Any:
    """The JSON value in `text`; Infinity is a number, NaN is none.

    Raises Day0Error naming the file: no JSON, a key given twice, NaN, an integer too long, nested too deeply, or half a
    surrogate pair, which no file can hold as text.
    """
    try:
        value = json.loads(text, parse_constant=_constant, object_pairs_hook=unique_pairs)
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        raise Day0Error(f"{name} is not valid JSON (line {error.lineno}: {error.msg})", hint=hint) from error
    except UnusableJsonError as error:
        raise Day0Error(f"{name} is not usable JSON ({error})", hint=hint) from error
    except UnicodeEncodeError as error:
        raise Day0Error(f"{name} is not usable JSON (it holds half a character)", hint=hint) from error
    except ValueError as error:  # Python's own limit on integers
        raise Day0Error(f"{name} is not usable JSON (it holds a number of thousands of digits)", hint=hint) from error
    except RecursionError as error:
        raise Day0Error(f"{name} is not usable JSON (it nests too deeply)", hint=hint) from error


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads(object_pairs_hook=...). Raises UnusableJsonError for a key given twice."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise UnusableJsonError(f"it gives the key {twice!r} twice")
    return unique


def _constant(word: str) -> float:
    """Infinity is a limit that configs of state space models hold; NaN is no value for anything."""
    if word == "NaN":
        raise UnusableJsonError("NaN is no number")
    return float(word.replace("Infinity", "inf"))
