"""The operators and functions of recipe expressions, each of which says which operand is not what it takes."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from day0.errors import Day0Error

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SAME: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_AMONG: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
COMPARE = _ORDER | _SAME | _AMONG
ARITHMETIC = frozenset(_ARITHMETIC)
_MAX_EXPONENT = 64
_MAX_BITS = 10_000  # of an integer: bounds the work of powers of powers
_MAX_ITEMS = 100_000  # of a repeated list: far above any number of layers

NUMBER, LIST = "a number", "a list"


class Unfit(Exception):
    """Operand number `operand` is not `expected`."""

    def __init__(self, operand: int, expected: str) -> None:
        super().__init__(f"operand {operand}, expected {expected}")
        self.operand = operand
        self.expected = expected


def arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    """Two numbers; `+` also joins two texts or two lists. Raises Unfit, or Day0Error for a power out of bounds."""
    if isinstance(op, ast.Add):
        if any(isinstance(left, joined) and isinstance(right, joined) for joined in (str, list)):
            return operator.add(left, right)
    _numbers(left, right)
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod) and right == 0:
        raise Unfit(1, "a number other than 0")
    if isinstance(op, ast.Pow):
        _check_power(left, right)
    return _ARITHMETIC[type(op)](left, right)


def _check_power(left: Any, right: Any) -> None:
    if abs(right) > _MAX_EXPONENT:
        raise Day0Error(f"exponent {right}", hint=f"exponents beyond {_MAX_EXPONENT} are refused")
    if left == 0 and right < 0:
        raise Unfit(0, "a number other than 0")
    if left < 0 and right % 1 != 0:
        raise Unfit(0, "a positive number")
    if isinstance(left, int) and left.bit_length() * abs(right) > _MAX_BITS:
        raise Day0Error("a number too large", hint="check the config values it reads")


def compare(op: ast.cmpop, left: Any, right: Any) -> bool:
    """Order of numbers, equality of anything, being in a list. Raises Unfit."""
    if type(op) in _ORDER:
        _numbers(left, right)
    if type(op) in _AMONG and not isinstance(right, list | tuple):
        raise Unfit(1, LIST)
    return COMPARE[type(op)](left, right)


def negative(value: Any) -> Any:
    _numbers(value)
    return -value


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit(0, "true or false")
    return value


def entry(values: Any, index: Any) -> Any:
    """An entry of a list. Raises Unfit."""
    if not isinstance(values, list | tuple):
        raise Unfit(0, LIST)
    if isinstance(index, bool) or not isinstance(index, int):
        raise Unfit(1, "a whole number")
    if not -len(values) <= index < len(values):
        raise Unfit(0, f"a list with an entry {index}")
    return values[index]


def _len(values: Any) -> int:
    if not isinstance(values, list | tuple | str):
        raise Unfit(0, LIST)
    return len(values)


def _least(*values: Any) -> Any:
    _numbers(*values)
    return min(values)


def _greatest(*values: Any) -> Any:
    _numbers(*values)
    return max(values)


def _int(value: Any) -> int:
    _numbers(value)
    if not math.isfinite(value):
        raise Unfit(0, "a finite number")
    return int(value)


def _sqrt(value: Any) -> float:
    _numbers(value)
    if value < 0:
        raise Unfit(0, "no negative number")
    return math.sqrt(value)


def _ln(value: Any) -> float:
    _numbers(value)
    if value <= 0:
        raise Unfit(0, "a positive number")
    return math.log(value)


def _first(value: Any) -> Any:
    return entry(value, 0) if isinstance(value, list | tuple) else value


def _index(values: Any, item: Any) -> int:
    if not isinstance(values, list | tuple):
        raise Unfit(0, LIST)
    if item not in values:
        raise Unfit(0, f"a list that holds {item}")
    return list(values).index(item)


def _repeat(pattern: Any, length: Any) -> list[Any]:
    if not isinstance(pattern, list | tuple) or not pattern:
        raise Unfit(0, "a list that is not empty")
    if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= _MAX_ITEMS:
        raise Unfit(1, f"a whole number from 0 to {_MAX_ITEMS}")
    return [pattern[i % len(pattern)] for i in range(length)]


# name -> (fewest arguments, most arguments, function)
FUNCTIONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "len": (1, 1, _len),
    "min": (1, 100, _least),
    "max": (1, 100, _greatest),
    "int": (1, 1, _int),
    "sqrt": (1, 1, _sqrt),
    "ln": (1, 1, _ln),
    "first": (1, 1, _first),
    "index": (2, 2, _index),
    "repeat": (2, 2, _repeat),
}


def _numbers(*values: Any) -> None:
    for place, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unfit(place, NUMBER)
