"""Run a package over one prompt and keep what every operator and every layer took and gave."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from day0.engine.runner import Runner
from day0.errors import Day0Error
from day0.kernels.interface.attributes import Attributes
from day0.kernels.interface.choice import Choice
from day0.kernels.interface.module import OperatorModule
from day0.kernels.interface.package import Package
from day0.kernels.registry import get_kind

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Call:
    """One call of an operator's method. Tuples among its ports are flattened; ports left out are gone.

    The tensors are those that passed between the operators, not copies: which call made an input is told by identity.
    """

    path: str
    kind: str
    method: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: Attributes
    again: Callable[[Sequence[Tensor]], tuple[Tensor, ...]]  # the same call on other inputs
    choices: Mapping[str, Choice] = field(default_factory=dict)  # discrete ones, and by which scores they are made

    @property
    def layer(self) -> int | None:
        found = _LAYER.fullmatch(self.path)
        return int(found[1]) if found else None

    @property
    def operator(self) -> str:
        """Name without the layer, with the method: "residual.post"."""
        found = _LAYER.fullmatch(self.path)
        name = found[2] if found else self.path
        return f"{name}.{self.method}" if self.method else name

    def port(self, number: int) -> str:
        """Name of an output, as its kind calls it; its number where the kind's outputs are nested."""
        names = get_kind(self.kind).methods[self.method].output_names(self.attributes)
        return names[number] if len(names) == len(self.outputs) else str(number)


@dataclass
class Capture:
    """One forward of a package over one sequence of N tokens."""

    calls: list[Call] = field(default_factory=list)
    layer_inputs: dict[int, Tensor] = field(default_factory=dict)  # [N, ...]
    layer_outputs: dict[int, Tensor] = field(default_factory=dict)  # [N, ...]
    logits: Tensor = field(default_factory=lambda: torch.empty(0))  # [N, vocab]


def capture_package(model: Package, ids: list[int], *, force: Mapping[int, Tensor] | None = None) -> Capture:
    """A fresh sequence through the prompt in one step. `force`: layer -> the value its first input is replaced by."""
    runner = Runner(model, sequences=2, tokens=len(ids), poison=True)
    captured = Capture()
    with recorded_operators(model, captured), _recorded_layers(model, captured, force or {}):
        _, captured.logits = runner.prefill(ids)
    return captured


def package_layers(model: Package) -> list[nn.Module]:
    """The package's layers in order. Raises Day0Error for a model.py without the list `layers`."""
    layers = getattr(model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise Day0Error("the package's Model has no list of layers", hint="keep `self.layers` when editing model.py")
    return list(layers)


def flatten(value: Any) -> Iterator[Tensor]:
    """The tensors in a value of nested tuples, lists and None."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from flatten(part)


def _refill(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The nested value with its tensors replaced, in the order of `flatten`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, tuple | list):
        return tuple(_refill(part, tensors) for part in value)
    return value


@contextmanager
def recorded_operators(model: Package, captured: Capture) -> Iterator[None]:
    # Forward hooks would miss an operator's other methods; every method goes through `run`.
    operators = list(model.operators())
    for operator in operators:
        vars(operator)["run"] = _recording(operator, captured)
    try:
        yield
    finally:
        for operator in operators:
            del vars(operator)["run"]


def _recording(operator: OperatorModule, captured: Capture) -> Any:
    plain = operator.run

    def run(*ports: Any, method: str = "", **context: Any) -> Any:
        result = plain(*ports, method=method, **context)
        inputs, outputs = tuple(flatten(ports)), tuple(flatten(result))

        def again(others: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(flatten(plain(*_refill(ports, iter(others)), method=method, **context)))

        choices = {} if method else operator.choices(*ports, **context)
        captured.calls.append(
            Call(operator.name, operator.kind, method, inputs, outputs, operator.attributes, again, choices)
        )
        return result

    return run


@contextmanager
def _recorded_layers(model: Package, captured: Capture, force: Mapping[int, Tensor]) -> Iterator[None]:
    handles = []
    for index, layer in enumerate(package_layers(model)):
        handles.append(layer.register_forward_pre_hook(_layer_input(index, captured, force)))
        handles.append(layer.register_forward_hook(_layer_output(index, captured)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer_input(index: int, captured: Capture, force: Mapping[int, Tensor]) -> Any:
    def hook(_module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if index in force:
            first = arguments[0]
            forced = force[index].to(dtype=first.dtype, device=first.device).reshape(first.shape)
            arguments = (forced, *arguments[1:])
        captured.layer_inputs[index] = arguments[0]
        return arguments

    return hook


def _layer_output(index: int, captured: Capture) -> Any:
    def hook(_module: nn.Module, _arguments: tuple[Any, ...], result: Any) -> None:
        captured.layer_outputs[index] = next(flatten(result))

    return hook
