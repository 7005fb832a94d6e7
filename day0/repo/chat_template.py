"""Render a repo's chat template: Jinja from a stranger, so it runs in Jinja's sandbox under bounds.

What a template may use follows transformers' chat templating: `messages`, `tools`, `documents`,
`add_generation_prompt`, the special tokens, `raise_exception`, `strftime_now`, `tojson`, loop controls, and the
`{% generation %}` block (rendered as its content).
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from day0.errors import Day0Error

MAX_SOURCE_CHARS = 1_000_000
MAX_OUTPUT_CHARS = 64_000_000
MAX_RENDER_S = 10.0
_MAX_REPEATED_CHARS = 1_000_000
_TEMPLATE_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """Text of template `source` over `variables`.

    Time and output length are bounded, and so is what `*` and `**` may build; memory is not bounded otherwise.
    Raises Day0Error: syntax error, undefined use, `raise_exception`, or a bound reached.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise _failed(f"has {len(source)} characters, more than {MAX_SOURCE_CHARS}")
    try:
        template = _environment().from_string(source)
        parts: list[str] = []
        length = 0
        with _deadline(MAX_RENDER_S):
            for part in template.generate(variables):
                length += len(part)
                if length > MAX_OUTPUT_CHARS:
                    raise _failed(f"renders more than {MAX_OUTPUT_CHARS} characters")
                parts.append(part)
    except (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise _failed(f"does not render these messages ({type(error).__name__}: {error})") from error
    return "".join(parts)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (isinstance(left, int | float) and abs(left) <= 1024 and abs(right) <= 1024):
            raise _failed("computes a power too large")
        for value, count in ((left, right), (right, left)):
            if (
                operator == "*"
                and isinstance(count, int)
                and isinstance(value, str | list | tuple)
                and len(value) * count > _MAX_REPEATED_CHARS
            ):
                raise _failed("repeats a value too many times")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote, for training masks; it renders as its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise _failed(f"refuses these messages: {message}")


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise Day0Error in this thread once `seconds` are over, also inside a loop that yields nothing.

    A trace function sees each line of the compiled template; a timer signal would work in the main thread only.
    """
    end = time.monotonic() + seconds
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise _failed(f"does not end within {seconds:g} s")
        return trace if frame.f_code.co_filename == "<template>" else None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _failed(what: str) -> Day0Error:
    return Day0Error(f"the chat template {what}", hint="check the messages, or correct the repo's chat template")
