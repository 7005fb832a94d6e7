"""What is wrong with an operator's attributes, in the words of the config that they come from."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from day0.errors import Day0Error
from day0.language.config_view import CHECK_VALUE, read_from, shown
from day0.language.expression import Scope

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
}
_OF_THE_RECIPE = ("extra_forbidden", "missing")


def attribute_fault(where: str, error: ValidationError, raw: Mapping[str, Any], scope: Scope) -> Day0Error:
    """The first fault of an operator's attributes: the attribute, what it is, from which config keys, what it may be.

    `raw`: the attributes as the recipe writes them.
    """
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] in _OF_THE_RECIPE:
        return Day0Error(f"{where}: {path}: {first['msg']}", hint="day0 kernels show KIND lists its attributes")
    if not first["loc"]:  # attributes that do not go together
        reason = first["msg"].removeprefix("Value error, ")
        return Day0Error(f"{where}: {reason}{read_from(scope.keys(dict(raw)))}", hint=CHECK_VALUE)
    words = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    expected = _EXPECTED.get(first["type"], f"a number {words}" if words.startswith(("greater", "less")) else words)
    origin = read_from(scope.keys(raw.get(str(first["loc"][0]))))
    return Day0Error(f"{where}: {path} is {shown(first['input'])}{origin}, expected {expected}", hint=CHECK_VALUE)
