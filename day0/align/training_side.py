"""Run a reference over one prompt and keep what every layer took and gave, and, traced, every tensor it named."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from day0.align.capture import flatten
from day0.errors import Day0Error
from day0.reference.float64 import float64_arithmetic
from day0.reference.load import load_reference
from day0.reference.match import TensorIndex
from day0.reference.runner import ReferenceRunner
from day0.reference.trace import Trace, text_model_path, trace
from day0.repo.model_repo import ModelRepo


class Forward(Protocol):
    """Ids [1, T] at positions start .. start + T - 1 -> logits [T, vocab] and the cache to go on from."""

    def __call__(
        self, ids: Tensor, start: int = 0, cache: Any = None, use_cache: bool = False
    ) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Reference:
    """A reference model in one dtype. `exact` is the context its arithmetic is honest in (for float64)."""

    dtype: torch.dtype
    layers: list[nn.Module]
    forward: Forward
    trace: Callable[[Callable[[], Any]], Trace]
    exact: Callable[[], AbstractContextManager[Any]]

    @torch.no_grad()
    def logits(self, ids: list[int]) -> Tensor:
        """[T, vocab] of a prompt, without a cache."""
        with self.exact():
            return self.forward(torch.tensor([ids]))[0]


@dataclass
class ReferenceCapture:
    """One forward of a reference, without its batch axis where it can be told apart: tensors are as recorded."""

    layer_inputs: dict[int, Tensor] = field(default_factory=dict)  # [1, T, ...]
    layer_outputs: dict[int, Tensor] = field(default_factory=dict)  # [1, T, ...]
    logits: Tensor = field(default_factory=lambda: torch.empty(0))  # [T, vocab]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # by location, when traced
    scores: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)  # what each line chose by, when traced

    def by_location(self) -> dict[str, Tensor]:
        """Everything recorded: what the trace named, the layers' inputs and outputs, the logits."""
        layers = {f"layers.{layer} output": tensor for layer, tensor in self.layer_outputs.items()}
        layers |= {f"layers.{layer} input": tensor for layer, tensor in self.layer_inputs.items()}
        return {**self.tensors, **layers, "logits": self.logits}

    def index(self) -> TensorIndex:
        """Everything recorded, searchable by content."""
        index = TensorIndex()
        for location, tensor in self.by_location().items():
            index.add(location, tensor)
        return index


@torch.no_grad()
def capture_reference(
    reference: Reference, ids: list[int], *, force: Mapping[int, Tensor] | None = None, traced: bool = True
) -> ReferenceCapture:
    """The prompt in one forward without a cache. `force`: layer -> the value its hidden states are replaced by."""
    captured = ReferenceCapture()

    def call() -> None:
        captured.logits = reference.forward(torch.tensor([ids]))[0].reshape(len(ids), -1)

    with reference.exact(), _recorded_layers(reference.layers, captured, force or {}):
        if traced:
            traced_call = reference.trace(call)
            captured.tensors, captured.scores = traced_call.tensors, traced_call.scores
        else:
            call()
    return captured


def reference_in(repo: ModelRepo, dtype: torch.dtype, *, layers: int | None = None) -> Reference:
    """The repo's reference in float64 (honest: with `float64_arithmetic` around it), float32 or bfloat16."""
    return as_reference(load_reference(repo, dtype=dtype, layers=layers), dtype)


def as_reference(model: nn.Module, dtype: torch.dtype) -> Reference:
    """A loaded model as a Reference. Raises Day0Error when its list of decoder layers is not found."""
    path = text_model_path(model)
    layers = next((m for n, m in model.get_submodule(path).named_children() if n in ("layers", "blocks")), None)
    if not isinstance(layers, nn.ModuleList):
        raise Day0Error(f"{type(model).__name__} has no list of decoder layers", hint="align needs a layered reference")
    return Reference(
        dtype=dtype,
        layers=list(layers),
        forward=ReferenceRunner(model).forward,
        trace=lambda call: trace(model, call)[0],
        exact=float64_arithmetic if dtype == torch.float64 else nullcontext,
    )


@contextmanager
def _recorded_layers(
    layers: list[nn.Module], captured: ReferenceCapture, force: Mapping[int, Tensor]
) -> Iterator[None]:
    handles = []
    for index, layer in enumerate(layers):
        handles.append(layer.register_forward_pre_hook(_layer_input(index, captured, force), with_kwargs=True))
        handles.append(layer.register_forward_hook(_layer_output(index, captured)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer_input(index: int, captured: ReferenceCapture, force: Mapping[int, Tensor]) -> Any:
    def hook(
        _module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = arguments[0] if arguments else named["hidden_states"]
        if index in force:
            hidden = force[index].to(hidden.dtype).reshape(hidden.shape)
            if arguments:
                arguments = (hidden, *arguments[1:])
            else:
                named = {**named, "hidden_states": hidden}
        captured.layer_inputs[index] = hidden.clone()
        return arguments, named

    return hook


def _layer_output(index: int, captured: ReferenceCapture) -> Any:
    def hook(_module: nn.Module, _arguments: tuple[Any, ...], result: Any) -> None:
        captured.layer_outputs[index] = next(flatten(result)).clone()

    return hook
