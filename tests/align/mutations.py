"""One deliberately wrong attribute in a package: which there are, and what exactness says of each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from day0.align.exactness import Expected, check_exactness
from day0.artifacts.alignment import FirstBad
from day0.kernels.interface.package import Package
from day0.kernels.registry import get_kind


@dataclass(frozen=True)
class Excuse:
    """Why a float64 run cannot see another value of an attribute: of operators whose attributes, with that value, are
    such as `of` says; in `families` only, where there are some.
    """

    reason: str
    of: Callable[[Any, Any], bool] = lambda attributes, value: True
    families: tuple[str, ...] = ()
    by_chance: bool = False  # it depends on the random weights: another family may see it


_EITHER_WAY = "says in which dtype: float64 either way"
_OTHER_DECAY = "means nothing in another decay form"

# What is not listed has to be seen.
UNSEEN = {
    ("norm", "cast"): Excuse("says where float32 goes back to the activation dtype: both are float64"),
    ("linear", "float32"): Excuse(_EITHER_WAY),
    ("moe", "router_float32"): Excuse(_EITHER_WAY),
    ("rotary", "float32_tables"): Excuse(_EITHER_WAY),
    ("moe", "renormalise_eps"): Excuse(
        "beside a sum of scores of order 1 it is below the bound", lambda a, v: max(a.renormalise_eps, v) <= 1e-15
    ),
    ("moe", "clamp"): Excuse("no activation reaches this limit", lambda a, v: a.clamp == 0, by_chance=True),
    ("mlp", "clamp"): Excuse("no activation reaches this limit", lambda a, v: a.clamp == 0, by_chance=True),
    ("norm", "gate_order"): Excuse("means nothing without a gate", lambda a, v: a.gate == "none"),
    ("recurrence", "lower_bound"): Excuse(_OTHER_DECAY, lambda a, v: a.decay_form != "bounded_sigmoid"),
    ("recurrence", "time_step_min"): Excuse(_OTHER_DECAY, lambda a, v: a.decay_form != "time_step"),
    ("recurrence", "slope_scale"): Excuse("means nothing where decay varies", lambda a, v: a.decay != "constant"),
    ("residual_mix", "width"): Excuse(
        "sizes weights only, of which this scheme has none", lambda a, v: not get_kind("residual_mix").weights(a)
    ),
    ("rotary", "original_max_position_embeddings"): Excuse(
        "enters through bounds that are rounded to whole channels",
        lambda a, v: v == a.original_max_position_embeddings + 1,
        ("deepseek_v32",),
    ),
}


@dataclass(frozen=True)
class Mutation:
    """`operator` (its name without the layer) gets `value` for `attribute`, in every layer where it stands."""

    operator: str
    kind: str
    attribute: str
    value: Any

    def __str__(self) -> str:
        return f"{self.operator}({self.kind}).{self.attribute}={self.value}"


def mutations(package: Package) -> list[Mutation]:
    """For every operator and attribute the other values that keep its weights, state and ports as they are."""
    found: dict[str, Mutation] = {}
    for module in package.operators():
        operator = module.name.rsplit(".", 1)[-1]
        for attribute in type(module.attributes).model_fields:
            for value in _other_values(module.kind, module.attributes, attribute):
                mutation = Mutation(operator, module.kind, attribute, value)
                if _fits(module.kind, module.attributes, mutation):
                    found.setdefault(str(mutation), mutation)
    return list(found.values())


@contextmanager
def mutated(package: Package, mutation: Mutation) -> Iterator[None]:
    """The package with the mutation, and as it was afterwards."""
    changed = []
    for module in package.operators():
        if module.name.rsplit(".", 1)[-1] == mutation.operator and _fits(module.kind, module.attributes, mutation):
            changed.append((module, module.attributes))
            module.attributes = _with(module.kind, module.attributes, mutation)
    assert changed, f"{mutation} changes nothing"
    try:
        yield
    finally:
        for module, attributes in changed:
            module.attributes = attributes


@dataclass(frozen=True)
class Outcome:
    """`named`: exactness blames the mutated operator. `silent`: every tensor still equals the reference's."""

    mutation: Mutation
    result: Literal["named", "misnamed", "silent", "raises"]
    first_bad: FirstBad | None = None
    detail: str = ""


def try_mutation(package: Package, expected: Sequence[Expected], mutation: Mutation) -> Outcome:
    """What exactness makes of a package with one wrong attribute: it must name the operator and a layer that has it.

    Named beside another is not enough: the references hold every output of every operator.
    """
    places = [m.name for m in package.operators() if m.name.rsplit(".", 1)[-1] == mutation.operator]
    with mutated(package, mutation):
        try:
            result = check_exactness(package, expected)
        except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
            return Outcome(mutation, "raises", detail=f"{type(error).__name__}: {error}")
    bad = result.first_bad
    if bad is None:
        assert all(row.verdict == "holds" for row in result.rows)
        return Outcome(mutation, "silent")
    blamed = bad.operator.split(".")[0]  # without the method
    named = (blamed if bad.layer is None else f"layers.{bad.layer}.{blamed}") in places
    return Outcome(mutation, "named" if named else "misnamed", bad)


def unseen_because(package: Package, mutation: Mutation, family: str) -> Excuse | None:
    """Why a mutation leaves every tensor as it is; None when it must not."""
    excuse = UNSEEN.get((mutation.kind, mutation.attribute))
    if excuse is None or (excuse.families and family not in excuse.families):
        return None
    named = [m for m in package.operators() if m.name.rsplit(".", 1)[-1] == mutation.operator]
    return excuse if all(excuse.of(m.attributes, mutation.value) for m in named) else None


def _other_values(kind: str, attributes: Any, attribute: str) -> list[Any]:
    value = getattr(attributes, attribute)
    listed = [v for v in type(attributes).alternatives().get(attribute, ()) if v != value]
    if listed:
        return listed
    annotation = type(attributes).model_fields[attribute].annotation
    if get_origin(annotation) is Literal:
        return [v for v in get_args(annotation) if v != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value * 1.25, value * 4] if value else [0.5]
    return [value + 1, value * 2] if isinstance(value, int) else []


def _with(kind: str, attributes: Any, mutation: Mutation) -> Any:
    return get_kind(kind).parse({**attributes.model_dump(), mutation.attribute: mutation.value})


def _fits(kind: str, attributes: Any, mutation: Mutation) -> bool:
    declared = get_kind(kind)
    if getattr(attributes, mutation.attribute) == mutation.value:
        return False
    try:
        changed = _with(kind, attributes, mutation)
        return dict(declared.weights(changed)) == dict(declared.weights(attributes)) and declared.state(
            changed
        ) == declared.state(attributes)
    except (ValidationError, ValueError, ZeroDivisionError):
        return False
