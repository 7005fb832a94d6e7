"""A recipe's steps: `x, mix = residual.pre(h)`: values on the left, one call on the right."""

import keyword
import re
from dataclasses import dataclass

from day0.errors import Day0Error

_NAME = r"[a-z][a-z0-9_]*"
_NAMES = rf"{_NAME}(?:\s*,\s*{_NAME})*"
_STEP = re.compile(rf"^({_NAMES})\s*=\s*({_NAME})(?:\.({_NAME}))?\(\s*((?:{_NAMES})?)\s*\)$")
_RESERVED = {"batch", "memory", "self", "torch", "nn"}


@dataclass(frozen=True)
class Step:
    """`targets = callee.method(arguments)`; method "" is the plain call."""

    targets: tuple[str, ...]
    callee: str
    method: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        method = f".{self.method}" if self.method else ""
        return f"{', '.join(self.targets)} = {self.callee}{method}({', '.join(self.arguments)})"


def parse_step(text: str) -> Step:
    """Raises Day0Error when the text is no step."""
    found = _STEP.match(text.strip())
    if not found:
        raise Day0Error(f"not a step: {text!r}", hint="write: y = operator(x), or: a, b = operator.method(x, y)")
    targets, callee, method, arguments = found.groups()
    step = Step(_split(targets), callee, method or "", _split(arguments))
    taken = [name for name in (*step.targets, *step.arguments, step.callee) if not is_name(name)]
    if taken:
        raise Day0Error(f"{text!r} uses the reserved name {sorted(taken)[0]!r}", hint="choose another name")
    return step


def is_name(text: str) -> bool:
    """Whether a recipe may give a value, an operator, a block or a slot this name: it becomes one in a package."""
    return re.fullmatch(_NAME, text) is not None and not keyword.iskeyword(text) and text not in _RESERVED


def _split(names: str) -> tuple[str, ...]:
    return tuple(n.strip() for n in names.split(",")) if names.strip() else ()
