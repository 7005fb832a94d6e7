"""Weight sources: how a recipe says where an operator's weight stands in a checkpoint.

A source is a tensor-name pattern, or one of

    {concat: [source, ...], dim: 0}            parts side by side
    {stack: source, over: expert, count: $n}   the source for {expert} = 0..n-1, stacked on a new first dimension
    {concat_each: source, over: part, count: $n}
                                               the source for {part} = 0..n-1, side by side on dimension 0
    {split: source, sizes: [...], take: i, dim: 0}
    {groups: source, count: $n, sizes: [...], take: i}
                                               dim 0 is n groups of consecutive parts of these sizes; part i of each
    {transpose: source}                        the last two dimensions swapped
    {reshape: source, shape: [...]}
    {first_of: [source, ...]}                  the first whose tensors all exist (other spellings of one checkpoint)

Resolving fills the patterns and evaluates the expressions; what is left (`Resolved`) is plain data that
`day0.kernels.interface.weight_map` applies without knowing recipes.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from day0.errors import Day0Error
from day0.language.config_view import CHECK_VALUE, read_from, shown
from day0.language.expression import Scope

Resolved = str | dict[str, Any]

_KEYS: dict[str, frozenset[str]] = {
    "concat": frozenset({"concat", "dim"}),
    "concat_each": frozenset({"concat_each", "over", "count"}),
    "stack": frozenset({"stack", "over", "count"}),
    "split": frozenset({"split", "sizes", "take", "dim"}),
    "groups": frozenset({"groups", "count", "sizes", "take"}),
    "transpose": frozenset({"transpose"}),
    "reshape": frozenset({"reshape", "shape"}),
    "first_of": frozenset({"first_of"}),
}
_FIELD = re.compile(r"\{([a-z_]+)\}")
_NEEDED = {key: owned - {"dim", "over"} for key, owned in _KEYS.items()}
MAX_SIZE = 2**40  # elements along a dimension
MAX_PARTS = 100_000  # of a stack: bounds the work of a config that is wrong


def resolve_source(source: Any, scope: Scope, names: Mapping[str, Any], tensors: Collection[str]) -> Resolved:
    """Fill one source's patterns with `names` ({prefix}, {here}, {layer}); `tensors` decides `first_of`.

    When no alternative of a `first_of` is complete the first is returned, so that its missing tensors get reported.
    Raises Day0Error on a malformed source.
    """
    if isinstance(source, str):
        return fill(source, names)
    if not isinstance(source, Mapping):
        raise Day0Error(f"weight source {source!r} is neither a name nor a mapping", hint="see docs/recipes.md")
    operation = next((key for key in _KEYS if key in source), None)
    if operation is None or set(source) - _KEYS[operation] or _NEEDED[operation] - set(source):
        raise Day0Error(
            f"weight source with keys {', '.join(map(str, source))}",
            hint=f"one of {', '.join(_KEYS)} with its own keys (docs/recipes.md)",
        )
    inner = source[operation]
    if operation in ("first_of", "concat") and not (isinstance(inner, list | tuple) and inner):
        raise Day0Error(f"{operation} of {shown(inner)}, expected a list of sources", hint="see docs/recipes.md")
    if operation == "first_of":
        options = [resolve_source(option, scope, names, tensors) for option in inner]
        return next((o for o in options if all(t in tensors for t in tensor_names(o))), options[0])
    if operation == "concat":
        parts = [resolve_source(part, scope, names, tensors) for part in inner]
        return {"concat": parts, "dim": _whole(source.get("dim", 0), "dim", scope, least=-8, most=8)}
    if operation in ("stack", "concat_each"):
        count = _whole(source["count"], "count", scope, most=MAX_PARTS)
        over = str(source.get("over", "expert" if operation == "stack" else "part"))
        parts = [resolve_source(inner, scope, {**names, over: i}, tensors) for i in range(count)]
        return {"stack": parts} if operation == "stack" else {"concat": parts, "dim": 0}
    resolved = resolve_source(inner, scope, names, tensors)
    rest: dict[str, Any] = {}
    for key, raw in source.items():
        if key in ("sizes", "shape"):
            rest[key] = _sizes(raw, key, scope)
        elif key != operation:
            rest[key] = _whole(raw, key, scope, least={"dim": -8, "take": 0}.get(key, 1))
    if "take" in rest and rest["take"] >= len(rest["sizes"]):
        raise Day0Error(f"take {rest['take']} of {len(rest['sizes'])} parts", hint="parts are counted from 0")
    return {operation: resolved, **rest}


def _sizes(raw: Any, name: str, scope: Scope) -> list[int]:
    sizes = scope.value(raw)
    if not isinstance(sizes, list | tuple) or not sizes:
        raise Day0Error(f"{name} is {shown(sizes)}, expected a list of sizes", hint="see docs/recipes.md")
    return [_check_whole(size, raw, name, scope, 1, MAX_SIZE) for size in sizes]


def _whole(raw: Any, name: str, scope: Scope, *, least: int = 1, most: int = MAX_SIZE) -> int:
    return _check_whole(scope.value(raw), raw, name, scope, least, most)


def _check_whole(value: Any, raw: Any, name: str, scope: Scope, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Day0Error(
            f"{name} is {shown(value)}{read_from(scope.keys(raw))}, expected a whole number from {least} to {most}",
            hint=CHECK_VALUE,
        )
    return value


def fill(pattern: str, names: Mapping[str, Any]) -> str:
    """The pattern with each {name} replaced. Raises Day0Error for another name, and for a brace by itself."""
    unknown = [field for field in _FIELD.findall(pattern) if field not in names]
    if unknown or "{" in (rest := _FIELD.sub("", pattern)) or "}" in rest:
        known = ", ".join(f"{{{name}}}" for name in names)
        raise Day0Error(f"cannot fill in the tensor name {pattern!r}", hint=f"it may use {known}")
    return _FIELD.sub(lambda field: str(names[field.group(1)]), pattern)


def tensor_names(source: Resolved) -> Iterator[str]:
    """Every checkpoint tensor a resolved source reads, in order."""
    if isinstance(source, str):
        yield source
        return
    for key in _KEYS:
        if key in source:
            inner = source[key]
            for part in inner if isinstance(inner, list) else [inner]:
                yield from tensor_names(part)


def describe(source: Resolved) -> str:
    """The operations of a resolved source in words, outermost first ("concat of 3", "" for a plain tensor)."""
    if isinstance(source, str):
        return ""
    key = next(k for k in _KEYS if k in source)
    inner = source[key]
    word = f"{key} of {len(inner)}" if isinstance(inner, list) else key
    deeper = describe(inner[0] if isinstance(inner, list) else inner)
    return f"{word}, {deeper}" if deeper else word
