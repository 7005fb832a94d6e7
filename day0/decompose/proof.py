"""Prove operators by value: what a program computes is searched among what the reference computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from day0.decompose.interpret import Interpreter, OperatorCall, OperatorFailure, Weights
from day0.language.program import Program
from day0.reference.match import Match, TensorIndex, arrange, error
from day0.reference.trace import Trace


@dataclass(frozen=True)
class Probe:
    """One call of the reference on a sequence's next tokens, and what it computed."""

    name: str
    ids: tuple[int, ...]
    # What modules and functions gave; what had a name; what had none. The first that holds a value names its place.
    indexes: tuple[TensorIndex, ...]
    first_position: int = 0  # of the tokens in their sequence

    def find(self, output: Tensor, tolerance: float) -> Match | None:
        """Where the reference computed this value (a choice of positions: the same set per row)."""
        for index in self.indexes:
            if output.is_floating_point():
                match = index.find(output, tolerance)
            else:
                location = index.find_choice(output, self.first_position)
                match = None if location is None else Match(location, (), 0.0)
            if match is not None:
                return match
        return None

    def nearest(self, output: Tensor, location: str = "") -> tuple[Match, Tensor] | None:
        """The recorded value most like a floating output, in its shape; None when none is related.

        The value at `location` is taken where there is one of that size.
        """
        if not output.is_floating_point():
            return None
        there = [
            value for index in self.indexes for place, value in index.same_size(output) if place == location and place
        ]
        if there:
            value = min(there, key=lambda v: error(v, output))
            return Match(location, (), error(value, output)), value.contiguous()
        found = [(match, index) for index in self.indexes if (match := index.nearest(output)) is not None]
        if not found:
            return None
        match, index = min(found, key=lambda pair: pair[0].error)
        return match, arrange(index[match.location], match.axes).reshape(output.shape).contiguous()


@dataclass(eq=False)
class Found:
    """What became of one operator call in one probe."""

    call: OperatorCall
    probe: int
    matches: list[Match | None]
    parents: list["Found"] = field(default_factory=list)  # calls whose outputs it reads and nobody has found yet
    confirmed_by: "Found | None" = None  # itself, or the operator downstream whose outputs were found
    failure: str = ""  # why it could not be computed at all

    @property
    def name(self) -> str:
        return self.call.use.name

    @property
    def own(self) -> bool:
        """Whether the reference holds every tensor it gave; not where it gave none, which could show nothing."""
        return bool(self.matches) and all(self.matches)

    @property
    def proved(self) -> bool:
        """Its outputs are confirmed, and so is every value that went in (see `search` for those replaced)."""
        return self.confirmed_by is not None and all(parent.confirmed_by is not None for parent in self.parents)

    def confirm(self, by: "Found") -> None:
        """Equal outputs here prove every unfound value that went in; an equal choice does not: it may be so by luck."""
        if self.confirmed_by is None:
            self.confirmed_by = by
            if any(t.is_floating_point() for output in self.call.outputs for t in tensors_of(output)):
                for parent in self.parents:
                    parent.confirm(by)


@dataclass(frozen=True)
class Proof:
    """What the probes say of one operator, over all layers where it stands."""

    proved: bool
    location: str = ""  # where the reference computed its (first) output
    error: float | None = None  # the largest relative L2 error; of what is contradicted, that of the nearest value
    probes: tuple[str, ...] = ()
    detail: str = ""
    contradiction: str = ""
    wrong: tuple[str, ...] = ()  # the attributes that are contradicted


def index_trace(trace: Trace) -> tuple[TensorIndex, ...]:
    """The trace's tensors by content: outputs of modules and functions, then other named values, then unnamed ones."""
    best: dict[int, str] = {}
    for location, tensor in trace.tensors.items():
        known = best.get(id(tensor))
        if known is None or _plainness(location) < _plainness(known):
            best[id(tensor)] = location
    indexes = (TensorIndex(), TensorIndex(), TensorIndex())
    for location in best.values():
        indexes[_plainness(location)[0]].add(location, trace.tensors[location])
    return indexes


def _plainness(location: str) -> tuple[int, bool]:
    """Lower is plainer; the first number is the index that the location belongs in."""
    if ".line " in location:
        return 2, False
    return (0 if ":out" in location or ".return" in location else 1), ".return" in location


def search(
    program: Program,
    weights: Weights,
    probes: Sequence[Probe],
    *,
    tolerance: float,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    forced: Mapping[tuple[str, str], str] | None = None,
) -> list[Found]:
    """Run the program on the probes' tokens and look for each operator's outputs in the reference's trace.

    `changes` replaces attributes by operator name. Where outputs of a call in `forced` ((path, method) -> location)
    are not found, what the reference has at that location, else what is nearest, takes their place where it has any.
    """
    interpreter = Interpreter(program, weights, changes or {}, max_tokens=sum(len(p.ids) for p in probes))
    forced = forced or {}
    found: list[Found] = []
    for number, probe in enumerate(probes):
        # Keyed by identity: the values between operators are passed on as they are. Kept alive by `found`.
        unfound: dict[int, Found] = {}

        def observe(
            call: OperatorCall, number: int = number, probe: Probe = probe, unfound: dict[int, Found] = unfound
        ) -> tuple[Any, ...]:
            matches = [[probe.find(t, tolerance) for t in tensors_of(output)] for output in call.outputs]
            record = Found(call, number, [m for of_output in matches for m in of_output])
            record.parents = [unfound[id(i)] for i in call.inputs if id(i) in unfound]
            found.append(record)
            if record.own:
                record.confirm(record)
                return call.outputs
            outputs = list(call.outputs)
            for i, of_output in enumerate(matches):
                if not all(of_output) and call.key in forced:
                    outputs[i] = _nearest(probe, outputs[i], forced[call.key])
                if not all(of_output) and outputs[i] is call.outputs[i]:
                    unfound[id(outputs[i])] = record
            return tuple(outputs)

        try:
            interpreter.run(list(probe.ids), observe)
        except OperatorFailure as error:
            record = Found(error.call, number, [], failure=error.reason)
            record.parents = [unfound[id(i)] for i in error.call.inputs if id(i) in unfound]
            return [*found, record]
    return found


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a value between operators: itself, or those of a tuple; none for None."""
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in tensors_of(item)] if isinstance(value, tuple | list) else []


def _nearest(probe: Probe, output: Any, location: str) -> Any:
    if isinstance(output, tuple | list):
        return type(output)(_nearest(probe, item, "") for item in output)
    near = probe.nearest(output, location) if isinstance(output, Tensor) else None
    return output if near is None else near[1]
