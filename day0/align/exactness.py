"""Exactness: package and reference both in float64, compared operator by operator; the first bad operator is named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

from torch import Tensor

from day0.align.capture import Call, Capture, capture_package
from day0.align.training_side import Reference, ReferenceCapture, capture_reference
from day0.artifacts.alignment import FirstBad, Mode, Prompt, Row
from day0.kernels.interface.package import Package
from day0.reference.match import Match, TensorIndex, error
from day0.reference.scores import ScoreMatch, find_scores

GATE = "exactness"
BOUND = 1e-10
# A wrong output this close to a reference tensor is that tensor, computed wrongly.
_NEAR = 0.3
_MOST_REPLAYS = 100

Port = tuple[str, int]  # operator name with method, output number


@dataclass
class Exactness:
    """`located`: where the reference holds an output, by (call path, method, output number), and where it chooses by
    the same scores, by (call path, method, "scores of <choice>"). `unscored`: choices of which it never does.
    """

    rows: list[Row] = field(default_factory=list)
    first_bad: FirstBad | None = None
    also_bad: list[FirstBad] = field(default_factory=list)
    located: dict[tuple[str, str, int | str], list[Match]] = field(default_factory=dict)
    unscored: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Expected:
    """What the float64 reference computes on a prompt, searchable by content."""

    prompt: Prompt
    capture: ReferenceCapture
    index: TensorIndex

    @classmethod
    def of(cls, reference: Reference, prompt: Prompt) -> "Expected":
        capture = capture_reference(reference, list(prompt.ids))
        return cls(prompt, capture, capture.index())


def check_exactness(package: Package, expected: Sequence[Expected], *, bound: float = BOUND) -> Exactness:
    """Every operator's output, every layer's and the logits of a float64 package: on its own activations, and layer by
    layer on the reference's.
    """
    result = Exactness()
    never_recorded: set[Port] = set()
    judgements: list[tuple[Expected, Mode, Judgement]] = []
    for one in expected:
        ids = list(one.prompt.ids)
        modes: dict[Mode, Capture] = {
            "propagated": capture_package(package, ids),
            "isolated": capture_package(package, ids, force=one.capture.layer_inputs),
        }
        for mode, captured in modes.items():
            judgements.append((one, mode, Judgement(captured, one.index, bound, one.capture.scores)))
    lines = {choice: line for _, _, judged in judgements for choice, line in judged.lines().items()}
    for _, _, judged in judgements:
        judged.hold_to(lines)
        never_recorded |= judged.excused_ports()
    scored = {choice for _, _, judged in judgements for choice in judged.choices(scored=True)}
    for one, mode, judged in judgements:
        name = one.prompt.name
        result.unscored |= judged.choices(scored=False) - scored
        result.rows += _operator_rows(judged, name, mode, bound)
        result.rows += boundary_rows(judged.captured, one.capture, name, mode, bound)
        result.located |= judged.located()
        for bad in judged.culprits(never_recorded, name, every_layer=mode == "isolated"):
            known = [(b.layer, b.operator) for b in (result.first_bad, *result.also_bad) if b is not None]
            if mode == "propagated":
                result.first_bad = result.first_bad or bad
            elif (bad.layer, bad.operator) not in known:
                result.also_bad.append(bad)
    return result


def boundary_rows(
    captured: Capture, expected: ReferenceCapture, prompt: str, mode: Mode, bound: float, gate: str = GATE
) -> list[Row]:
    """The rows of the layers' outputs and the logits."""
    pairs: list[tuple[int | None, str, Tensor, Tensor]] = [
        (layer, "layer", output, expected.layer_outputs[layer]) for layer, output in captured.layer_outputs.items()
    ]
    pairs.append((None, "logits", captured.logits, expected.logits))
    rows = []
    for layer, name, computed, exact in pairs:
        wrong = error(computed.reshape(-1), exact.reshape(-1)) if computed.numel() == exact.numel() else float("inf")
        rows.append(
            Row(
                gate=gate,
                prompt=prompt,
                mode=mode,
                layer=layer,
                operator=name,
                kind="",
                port="",
                error=wrong,
                bound=bound,
                verdict="holds" if wrong <= bound else "does not hold",
                note="" if computed.numel() == exact.numel() else f"{computed.numel()} elements, not {exact.numel()}",
            )
        )
    return rows


def _operator_rows(judged: "Judgement", prompt: str, mode: Mode, bound: float) -> list[Row]:
    rows = []
    for call in judged.calls:
        for number, tensor in enumerate(call.outputs):
            match, good = judged.found(tensor), judged.good[id(tensor)]
            note = ""
            if match is None and good:
                reader = judged.excuse(tensor, call)
                note = f"the reference never holds it; judged by {reader.operator if reader else 'its other outputs'}"
            elif match is None:
                match = judged.nearest(tensor)
                note = "no tensor of the reference is near" if match is None else "the nearest tensor"
            rows.append(
                Row(
                    gate=GATE,
                    prompt=prompt,
                    mode=mode,
                    layer=call.layer,
                    operator=call.operator,
                    kind=call.kind,
                    port=call.port(number),
                    error=match.error if match else None,
                    bound=bound,
                    verdict="holds" if good else "does not hold",
                    location=match.location if match else "",
                    note=note,
                )
            )
        for choice, scores in judged.scores_of(call):
            rows.append(
                Row(
                    gate=GATE,
                    prompt=prompt,
                    mode=mode,
                    layer=call.layer,
                    operator=call.operator,
                    kind=call.kind,
                    port=scores_port(choice),
                    error=scores.error,
                    bound=bound,
                    verdict="holds" if scores.error <= bound else "does not hold",
                    location=scores.location,
                )
            )
    return rows


def scores_port(choice: str) -> str:
    return f"scores of {choice}"


@dataclass(frozen=True)
class _Suspect:
    """A wrong output, or wrong scores. `near`: `match`, the reference's tensor closest to it, is what it should be."""

    call: Call
    port: str
    match: Match | None
    near: bool


class Judgement:
    """Which outputs of one captured forward the reference holds too.

    An output is *found* when an equal tensor was recorded in the reference. One that is not found is *excused* when an
    operator that reads it gives, from it, an output that is found or itself excused: the reference computes the same
    without ever holding the value. A choice of indices excuses nothing, being the same for many scores; the scores do,
    where the reference chooses by the same. What is neither is bad, and so is an operator that chooses by other scores.
    """

    def __init__(
        self,
        captured: Capture,
        index: TensorIndex,
        bound: float,
        scores: Mapping[str, Sequence[Tensor]] = MappingProxyType({}),
    ) -> None:
        self.captured = captured
        self.calls = captured.calls
        self.index = index
        self.bound = bound
        self.recorded_scores = scores
        self.places: dict[int, list[Match]] = {}
        self.producer: dict[int, Call] = {}
        self.readers: dict[int, list[Call]] = {}
        for call in self.calls:
            for tensor in call.inputs:
                self.readers.setdefault(id(tensor), []).append(call)
            for tensor in call.outputs:
                # An operator may hand an input on unchanged: its producer stays who computed it.
                self.producer.setdefault(id(tensor), call)
        for call in self.calls:
            for tensor in (*call.inputs, *call.outputs):
                if id(tensor) not in self.places:
                    self.places[id(tensor)] = self._look_up(tensor)
        self.scores = {
            (id(call), name): find_scores(scores, choice.scores)
            for call in self.calls
            for name, choice in call.choices.items()
        }
        self._judge()

    def _judge(self) -> None:
        self.good: dict[int, bool] = {}
        for call in reversed(self.calls):
            for tensor in call.outputs:
                self.good[id(tensor)] = self.found(tensor) is not None or self.excuse(tensor, call) is not None
        for call in self.calls:
            self._excuse_unread(call)

    def found(self, tensor: Tensor) -> Match | None:
        """Where the reference holds a tensor of this forward; the closest such place."""
        return next(iter(self.places[id(tensor)]), None)

    def _look_up(self, tensor: Tensor) -> list[Match]:
        if tensor.is_floating_point():
            return self.index.find_all(tensor, self.bound)
        location = self.index.find_choice(tensor)
        return [Match(location, (), 0.0)] if location is not None else []

    def scores_of(self, call: Call) -> list[tuple[str, ScoreMatch]]:
        """The call's choices by name, each with the reference's scores that it is made by, right or wrong."""
        matches = ((name, self.scores[id(call), name]) for name in call.choices)
        return [(name, match) for name, match in matches if match is not None]

    def choices(self, *, scored: bool) -> set[str]:
        """Names of the choices whose scores the reference has, or has not."""
        return {name for name, match in self._named_scores() if (match is not None) == scored}

    def lines(self) -> dict[str, str]:
        """Choices whose scores are right -> the line of the reference that chooses by the same."""
        return {name: m.location for name, m in self._named_scores() if m is not None and m.error <= self.bound}

    def hold_to(self, lines: Mapping[str, str]) -> None:
        """Judge choices whose scores are like none in the reference by the line that another forward proved theirs."""
        before = dict(self.scores)
        for call in self.calls:
            for name, choice in call.choices.items():
                line = lines.get(f"{call.path} {scores_port(name)}")
                if self.scores[id(call), name] is None and line is not None:
                    self.scores[id(call), name] = find_scores(self.recorded_scores, choice.scores, line=line)
        if self.scores != before:
            self._judge()

    def _named_scores(self) -> list[tuple[str, ScoreMatch | None]]:
        return [
            (f"{call.path} {scores_port(name)}", self.scores[id(call), name])
            for call in self.calls
            for name in call.choices
        ]

    def nearest(self, tensor: Tensor) -> Match | None:
        return self.index.nearest(tensor) if tensor.is_floating_point() else None

    def excuse(self, tensor: Tensor, owner: Call) -> Call | None:
        """The reader that proves an output right although the reference does not hold it.

        Where another reader goes wrong and the reference holds a value close to this one, it is no proof: a reader
        that does not depend on the scale of its input, as a norm, hides what is wrong with it.
        """
        right: list[Call] = []
        wrong: list[Call] = []
        for reader in self.readers.get(id(tensor), ()):
            judged = [self.good.get(id(out), False) for out in reader.outputs if out.is_floating_point()]
            judged += [match.error <= self.bound for _, match in self.scores_of(reader)]
            if reader is not owner and judged:
                (right if all(judged) else wrong).append(reader)
        if right and wrong:
            near = self.nearest(tensor)
            return None if near is not None and near.error < _NEAR else right[0]
        return right[0] if right else None

    def _excuse_unread(self, call: Call) -> None:
        """An output nobody reads and the reference does not hold is judged by the call's other outputs."""
        unread = [t for t in call.outputs if not self.good[id(t)] and id(t) not in self.readers]
        others = [t for t in call.outputs if all(t is not u for u in unread)]
        if unread and others and all(self.good[id(t)] for t in others):
            self.good.update({id(t): True for t in unread})

    def excused_ports(self) -> set[Port]:
        """Outputs that the reference never holds although they are right: those excused here."""
        return {
            (call.operator, number)
            for call in self.calls
            for number, tensor in enumerate(call.outputs)
            if self.found(tensor) is None and self.good[id(tensor)]
        }

    def located(self) -> dict[tuple[str, str, int | str], list[Match]]:
        outputs: dict[tuple[str, str, int | str], list[Match]] = {
            (call.path, call.method, number): self.places[id(tensor)]
            for call in self.calls
            for number, tensor in enumerate(call.outputs)
            if tensor.is_floating_point() and self.places[id(tensor)]
        }
        return outputs | {
            (call.path, call.method, scores_port(name)): [Match(match.location, (), match.error)]
            for call in self.calls
            for name, match in self.scores_of(call)
            if match.error <= self.bound
        }

    def culprits(self, never_recorded: set[Port], prompt: str, *, every_layer: bool) -> list[FirstBad]:
        """Per layer (or only the first) the operator whose inputs agree and whose output does not."""
        candidates: dict[int | None, list[_Suspect]] = {}
        for call in self.calls:
            if not all(self._input_agrees(tensor, never_recorded) for tensor in call.inputs):
                continue
            for number, tensor in enumerate(call.outputs):
                if not self.good[id(tensor)] and (call.operator, number) not in never_recorded:
                    match = self.nearest(tensor)
                    near = match is not None and match.error < _NEAR
                    candidates.setdefault(call.layer, []).append(_Suspect(call, call.port(number), match, near))
            for name, scores in self.scores_of(call):
                if scores.error > self.bound:
                    suspect = _Suspect(call, scores_port(name), Match(scores.location, (), scores.error), near=True)
                    candidates.setdefault(call.layer, []).append(suspect)
        found = [self._blame(of_layer, prompt) for of_layer in candidates.values()]
        return found if every_layer else found[:1]

    def _input_agrees(self, tensor: Tensor, never_recorded: set[Port]) -> bool:
        producer = self.producer.get(id(tensor))
        if producer is None or self.good[id(tensor)]:
            return producer is not None or not tensor.is_floating_point() or self.found(tensor) is not None
        number = next(i for i, out in enumerate(producer.outputs) if out is tensor)
        # Never recorded in any layer: it is judged with its reader, provided that its own inputs agree.
        return (producer.operator, number) in never_recorded and all(
            self._input_agrees(t, never_recorded) for t in producer.inputs if t is not tensor
        )

    def _blame(self, candidates: list["_Suspect"], prompt: str) -> FirstBad:
        # Where several qualify, those whose wrong output has a counterpart in the reference come before those whose
        # output the reference may simply never hold.
        near = [c for c in candidates if c.near]
        first = (near or candidates)[0]
        call, match = first.call, first.match
        together = {c.operator for c in self._unjudged_before(call)}
        if not near:
            together |= {c.call.operator for c in candidates[1:]}
        if match is None and (maker := self._maker_of_wrong_input(call)) is not None:
            together.add(maker.operator)
        return FirstBad(
            layer=call.layer,
            operator=call.operator,
            kind=call.kind,
            port=first.port,
            prompt=prompt,
            error=match.error if match else None,
            nearest=match.location if match else "",
            together_with=tuple(sorted(together - {call.operator})),
        )

    def _maker_of_wrong_input(self, call: Call) -> Call | None:
        """Who may have given a call the wrong input, although the reference holds that tensor too (an intermediate).

        Recorded tensors of an input's size are tried in its place. One with which the call's outputs are found is what
        the input should have been, or what the call should have made of it: both operators are suspects.
        """
        for place, given in enumerate(call.inputs):
            maker = self.producer.get(id(given))
            if maker is None or not given.is_floating_point():
                continue
            for _, tensor in islice(self.index.same_size(given), _MOST_REPLAYS):
                tried = [*call.inputs[:place], tensor.to(given.dtype), *call.inputs[place + 1 :]]
                if all(self._look_up(out) for out in call.again(tried)):
                    return maker
        return None

    def _unjudged_before(self, call: Call) -> list[Call]:
        """The calls whose unproven outputs lead into this one."""
        found: list[Call] = []
        queue = list(call.inputs)
        while queue:
            tensor = queue.pop()
            producer = self.producer.get(id(tensor))
            if producer is not None and not self.good[id(tensor)] and producer not in found:
                found.append(producer)
                queue += producer.inputs
        return found
