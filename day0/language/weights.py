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

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from day0.errors import Day0Error
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


def resolve_source(source: Any, scope: Scope, names: Mapping[str, Any], tensors: Collection[str]) -> Resolved:
    """Fill one source's patterns with `names` ({prefix}, {here}, {layer}); `tensors` decides `first_of`.

    When no alternative of a `first_of` is complete the first is returned, so that its missing tensors get reported.
    Raises Day0Error on a malformed source.
    """
    if isinstance(source, str):
        try:
            return source.format_map(dict(names))
        except (KeyError, IndexError, ValueError) as error:
            raise Day0Error(
                f"weight source {source!r}: {error}", hint="patterns may use {prefix}, {here}, {layer}"
            ) from error
    if not isinstance(source, Mapping):
        raise Day0Error(f"weight source {source!r} is neither a name nor a mapping", hint="see docs/recipes.md")
    operation = next((key for key in _KEYS if key in source), None)
    if operation is None or set(source) - _KEYS[operation]:
        raise Day0Error(
            f"weight source with keys {sorted(source)}", hint=f"one of {', '.join(_KEYS)} with its own keys"
        )
    inner = source[operation]
    if operation == "first_of":
        options = [resolve_source(option, scope, names, tensors) for option in inner]
        return next((o for o in options if all(t in tensors for t in tensor_names(o))), options[0])
    if operation == "concat":
        parts = [resolve_source(part, scope, names, tensors) for part in inner]
        return {"concat": parts, "dim": int(scope.value(source.get("dim", 0)))}
    if operation in ("stack", "concat_each"):
        count = int(scope.value(source["count"]))
        over = source.get("over", "expert" if operation == "stack" else "part")
        parts = [resolve_source(inner, scope, {**names, over: i}, tensors) for i in range(count)]
        return {"stack": parts} if operation == "stack" else {"concat": parts, "dim": 0}
    resolved = resolve_source(inner, scope, names, tensors)
    rest = {key: scope.value(value) for key, value in source.items() if key != operation}
    return {operation: resolved, **rest}


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
