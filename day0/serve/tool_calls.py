"""One tool call as a model writes it, in the forms that recipes name."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"

# Of each tool, by name, the JSON schema of its arguments.
Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ToolCall:
    """`arguments` is a JSON object, as text."""

    name: str
    arguments: str


def parse_call(text: str, forms: Sequence[str], schemas: Schemas) -> ToolCall | None:
    """The call that stands between the markers; None for what is none, or not yet one."""
    found = (_FORMS[form](text.strip(), schemas) for form in forms)
    return next((call for call in found if call is not None), None)


def _json(text: str, schemas: Schemas) -> ToolCall | None:
    data = _value(text)
    if not isinstance(data, dict) or not data.keys() <= {"name", "arguments"}:
        return None
    name, arguments = data.get("name"), data.get("arguments", {})
    if not isinstance(name, str) or not name or not _is_text(name) or not isinstance(arguments, dict):
        return None
    return ToolCall(name, _dumped(arguments))


def _function_parameters(text: str, schemas: Schemas) -> ToolCall | None:
    if not text.startswith(_FUNCTION) or not text.endswith(_FUNCTION_END):
        return None
    name, closed, rest = text.removeprefix(_FUNCTION).removesuffix(_FUNCTION_END).partition(">")
    if not name or not closed:
        return None
    arguments: dict[str, Any] = {}
    properties = schemas.get(name, {}).get("properties", {})
    while rest := rest.strip():
        if not rest.startswith(_PARAMETER) or ">" not in rest:
            return None
        key, rest = rest.removeprefix(_PARAMETER).split(">", 1)
        end = _end_of_value(rest)
        if end is None:
            return None
        # A line of its own is how a value is written, and no part of it.
        value = rest[:end].removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(value, properties.get(key) if isinstance(properties, dict) else None)
        rest = rest[end + len(_PARAMETER_END) :]
    return ToolCall(name, _dumped(arguments))


_FORMS: dict[str, Callable[[str, Schemas], ToolCall | None]] = {
    "json": _json,
    "function_parameters": _function_parameters,
}


def _end_of_value(text: str) -> int | None:
    """Where the first value ends: at an end marker that another parameter or nothing follows, since a value may hold
    the marker too."""
    at = text.find(_PARAMETER_END)
    while at >= 0:
        after = text[at + len(_PARAMETER_END) :].lstrip()
        if not after or after.startswith(_PARAMETER):
            return at
        at = text.find(_PARAMETER_END, at + 1)
    return None


def _typed(text: str, schema: Any) -> Any:
    """A value that is written without quotes: JSON where the tool's schema asks for anything but a string."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind is None or kind == "string":
        return text
    value = _value(text)
    if value is None and text.strip() != "null":
        return text
    return value


def _value(text: str) -> Any:
    """What JSON says; None where it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _dumped(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return text if _is_text(text) else json.dumps(arguments)


def _is_text(text: str) -> bool:
    """JSON's escapes can write half a surrogate pair, which no answer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
