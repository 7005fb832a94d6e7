"""What a folder `kernels/<kind>/` declares about its kind of operator.

Everything outside `kernels/` learns about operators through `Kind` objects only; `day0.kernels.registry` finds them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from day0.artifacts.contract import Contract
from day0.artifacts.layout import Component
from day0.kernels.interface.attributes import Attributes

A = TypeVar("A", bound=Attributes)

DTypePolicy = Literal["activation", "float32", "int64"]


@dataclass(frozen=True)
class Weight:
    """One tensor an operator owns, under its canonical name.

    `dtype` "activation" follows the package's dtype, "float32" is kept in float32 (float64 in a float64 package)
    whatever the checkpoint stores, "int64" is an integer table. A recipe may keep further weights in float32.
    """

    shape: tuple[int, ...]
    dtype: DTypePolicy = "activation"


@dataclass(frozen=True)
class Shown:
    """A weight, or a component of the state, in the words that `day0 kernels show` has for it.

    `shape` ("[out_features, in_features]") and `when` ("" always, else "bias") are Python expressions over the
    attributes and their properties; a test holds them, `dtype` and `role` (of state) to what the kind declares.
    """

    shape: str
    when: str = ""
    meaning: str = ""
    dtype: str = "activation"
    role: str = ""


@dataclass(frozen=True)
class Method:
    """One entry of an operator's module: `y = op(x)` is the method "", `h = op.post(h, y, mix)` the method "post".

    Ports are the names in a recipe's step, in order. Every port tensor has packed tokens first: [tokens, ...].
    `outputs` may depend on the attributes (a projection that splits its result).
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    optional_inputs: tuple[str, ...] = ()

    def output_names(self, attributes: Attributes) -> tuple[str, ...]:
        return self.outputs(attributes) if callable(self.outputs) else self.outputs


@dataclass(frozen=True)
class Work:
    """The amount of work a cost is asked for: one step over a batch.

    `phase` "prefill": `tokens` new tokens in `sequences` sequences, each with `context` tokens already in memory.
    `phase` "decode" / "verify": the same with few tokens per sequence. Sizes in bytes per element.
    """

    phase: Literal["prefill", "decode", "verify"]
    tokens: int
    sequences: int
    context: int
    activation_bytes: int = 2
    weight_bytes: int = 2


@dataclass(frozen=True)
class Cost:
    """The least an implementation must do: floating point operations, and bytes moved (weights, state, ports)."""

    flops: float
    bytes_read: float
    bytes_written: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops, self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written
        )


@dataclass(frozen=True)
class Implementation:
    """One way to compute a kind. `module` is imported only when it is used.

    It holds one function per method, named like the method (the method "" like the kind), called as
    `function(attributes, *ports, **weights, batch=..., **state_pools)`: optional ports that a step leaves out are
    None, weights go by their canonical names, `batch` is passed when the kind's context has it, state pools by the
    component's local name. Every implementation has the signature of the reference, so that one can stand in for
    another.
    """

    name: str
    module: str
    contract: Contract


def _tuples(value: Any) -> Any:
    """Lists, as YAML and JSON give them, as the tuples that frozen attributes hold."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Kind(Generic[A]):
    """Everything known about one kind of operator; each `kernels/<kind>/kind.py` makes one, named KIND."""

    name: str
    summary: str
    attributes: type[A]
    methods: Mapping[str, Method]
    weights: Callable[[A], Mapping[str, Weight]]
    cost: Callable[[A, Work], Cost]
    implementations: tuple[Implementation, ...]
    state: Callable[[A], tuple[Component, ...]] = field(default=lambda attributes: ())
    # Every weight and component that the two functions can give, by name.
    weights_shown: Mapping[str, Shown] = field(default_factory=dict)
    state_shown: Mapping[str, Shown] = field(default_factory=dict)
    # What the module's forward takes beside its ports, in this order, out of "batch", "memory".
    context: tuple[str, ...] = ()
    # Kinds this one can be fused with when they follow each other, with the reason in words.
    fuses_with: Mapping[str, str] = field(default_factory=dict)
    # It chooses by scores, and its reference's module also has `choices(attributes, *ports, **weights, ...)`: the
    # choices by name (`interface.choice`) that the method "" makes on the same arguments, from empty memory.
    chooses: bool = False
    # When its dense path computes the same function as its sparse one ("context <= 2048"); None: it has one path.
    switch: Callable[[A], str | None] = field(default=lambda attributes: None)

    def components(self, attributes: A, owner: str = "") -> tuple[Component, ...]:
        """The operator's state; with `owner` ("layers.3.attention") the names are those of the package's Memory."""
        local = self.state(attributes)
        return tuple(c.model_copy(update={"name": f"{owner}.{c.name}"}) for c in local) if owner else local

    def parse(self, raw: Mapping[str, Any]) -> A:
        """Attributes from plain values. Raises pydantic.ValidationError naming each unknown, missing or wrong key."""
        return self.attributes.model_validate({key: _tuples(value) for key, value in raw.items()})

    def implementation(self, name: str) -> Implementation:
        for candidate in self.implementations:
            if candidate.name == name:
                return candidate
        known = ", ".join(i.name for i in self.implementations)
        raise KeyError(f"kind {self.name} has no implementation {name!r}; it has {known}")
