"""Run a program (a recipe applied to a config) step by step over the kinds' plain references."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from day0.artifacts.layout import Layout
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.interface.memory import Memory
from day0.kernels.interface.weight_map import Read, build
from day0.kernels.registry import get_kind, resolve
from day0.language.program import LAYERS, SKIP, Layer, OperatorUse, ParsedBlock, Program
from day0.language.steps import Step

Weights = Mapping[str, Mapping[str, Tensor]]  # an operator's path -> its canonical weights


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """One operator computed once: what went in and what came out (tensors, or tuples of them)."""

    use: OperatorUse
    method: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def key(self) -> tuple[str, str]:
        return self.use.path, self.method


class OperatorFailure(Exception):
    """An operator's plain reference refused its inputs: its attributes do not fit the model."""

    def __init__(self, use: OperatorUse, method: str, inputs: tuple[Any, ...], reason: str) -> None:
        super().__init__(f"{use.path}: {reason}")
        self.call = OperatorCall(use, method, inputs, ())
        self.reason = reason


# Called after each operator; what it returns goes on in place of the outputs.
Observe = Callable[[OperatorCall], tuple[Any, ...]]


def changed(use: OperatorUse, changes: Mapping[str, Any]) -> Any:
    """The operator's attributes with some replaced. Raises pydantic.ValidationError when they do not go together."""
    return get_kind(use.kind).parse(use.attributes.model_dump() | dict(changes)) if changes else use.attributes


def build_weights(program: Program, read: Read) -> dict[str, dict[str, Tensor]]:
    """Every operator's canonical weights in float64 (integer tables as they are), from checkpoint tensors."""
    built: dict[str, dict[str, Tensor]] = {}
    for use in program.uses():
        tensors = {name: build(source, read) for name, source in use.weights.items()}
        built[use.path] = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    return built


@dataclass
class Interpreter:
    """One sequence run through a program in float64, keeping its state from call to call.

    `changes` replaces attributes by operator name: how the attribute grid tries other values. Raises
    pydantic.ValidationError when they do not go together.
    """

    program: Program
    weights: Weights
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        self.done = 0
        self.attributes = {use.path: changed(use, self.changes.get(use.name, {})) for use in self.program.uses()}
        components = [
            component
            for use in self.program.uses()
            for component in get_kind(use.kind).components(self.attributes[use.path], use.path)
        ]
        layout = Layout(components=tuple(components), vocab_size=self.program.vocab_size)
        self.pages = list(range(-(-self.max_tokens // PAGE_TOKENS)))
        self.memory = Memory.allocate(layout, pages=len(self.pages), slots=1, dtype=torch.float64, poison=True)

    def run(self, ids: list[int], observe: Observe) -> tuple[Any, ...]:
        """What the program gives (logits [T, vocab]) for the sequence's next `ids`."""
        self.observe = observe
        return self._block(self.program.model, (self.begin(ids).token_ids,), None)

    def begin(self, ids: list[int]) -> Batch:
        """Make the sequence's next `ids` the step that operators are computed for."""
        self.batch = Batch.pack(
            [ids],
            context_lens=[self.done],
            slots=[0],
            pages=[self.pages],
            phase="decode" if len(ids) == 1 else "prefill",
        )
        self.done += len(ids)
        return self.batch

    def _block(self, block: ParsedBlock, arguments: tuple[Any, ...], layer: Layer | None) -> tuple[Any, ...]:
        values = dict(zip(block.takes, arguments, strict=True))
        for step in block.steps:
            results = self._step(step, tuple(values[a] for a in step.arguments), layer)
            values.update(zip(step.targets, results, strict=True))
        return tuple(values[g] for g in block.gives)

    def _step(self, step: Step, arguments: tuple[Any, ...], layer: Layer | None) -> tuple[Any, ...]:
        if step.callee == LAYERS and layer is None:
            for each in self.program.layers:
                arguments = self._block(self.program.blocks[each.block], arguments, each)
            return arguments
        target = layer.slots.get(step.callee, step.callee) if layer is not None else step.callee
        if target == SKIP:
            return arguments
        if target in self.program.blocks:
            return self._block(self.program.blocks[target], arguments, layer)
        use = (layer.operators if layer is not None else self.program.outer)[target]
        return self.observe(OperatorCall(use, step.method, arguments, self.compute(use, step.method, arguments)))

    @torch.no_grad()
    def compute(self, use: OperatorUse, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """One operator on these inputs, with its state. Raises OperatorFailure when it refuses them."""
        kind = get_kind(use.kind)
        attributes = self.attributes[use.path]
        owned = self.weights[use.path]
        lacking = [name for name in kind.weights(attributes) if name not in owned]
        if lacking:
            raise OperatorFailure(use, method, arguments, f"the checkpoint holds no {', '.join(lacking)}")
        extra: dict[str, Any] = {name: owned[name] for name in kind.weights(attributes)}
        if "batch" in kind.context:
            extra["batch"] = self.batch
        for component in kind.state(attributes):
            extra[component.name] = self.memory[f"{use.path}.{component.name}"]
        try:
            result = resolve(use.kind, "torch", method)(attributes, *arguments, **extra)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
            raise OperatorFailure(use, method, arguments, " ".join(str(error).split())[:200]) from error
        outputs = kind.methods[method].output_names(attributes)
        return tuple(result) if len(outputs) > 1 else (result,)


def steps_in_order(program: Program) -> Iterator[tuple[Layer | None, OperatorUse, Step]]:
    """Every operator step of the program, in the order in which it runs."""

    def walk(block: ParsedBlock, layer: Layer | None) -> Iterator[tuple[Layer | None, OperatorUse, Step]]:
        for step in block.steps:
            if step.callee == LAYERS and layer is None:
                for each in program.layers:
                    yield from walk(program.blocks[each.block], each)
                continue
            target = layer.slots.get(step.callee, step.callee) if layer is not None else step.callee
            if target in program.blocks:
                yield from walk(program.blocks[target], layer)
            elif target != SKIP:
                yield layer, (layer.operators if layer is not None else program.outer)[target], step

    yield from walk(program.model, None)
