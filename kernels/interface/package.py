"""The base of a generated package's `Model`: its operators, their memory, and how their weights are filled."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from day0.artifacts.contract import Facts
from day0.artifacts.layout import Layout
from day0.errors import Day0Error
from day0.kernels.interface.batch import Batch, Phase
from day0.kernels.interface.kind import Weight
from day0.kernels.interface.memory import Memory
from day0.kernels.interface.module import OperatorModule
from day0.kernels.interface.weight_map import build, misfits, tensors_read
from day0.kernels.registry import get_kind

Read = Callable[[str], Tensor]
INCOMPLETE = "get the checkpoint anew, or correct the recipe or config where they are for another model"


class Package(nn.Module):
    """What every generated `Model` can do beside its own forward(batch, memory) -> logits [N, vocab], or of the
    rows that the batch asks for [M, vocab]."""

    VOCAB_SIZE: ClassVar[int]
    MAX_POSITIONS: ClassVar[int | None]
    FOLDER: ClassVar[Path]
    _phase: Phase = "prefill"

    def forward(self, batch: Batch, memory: Memory) -> Tensor:
        raise TypeError(f"{type(self).__name__} has no forward of its own")

    def operators(self) -> Iterator[OperatorModule]:
        """The operator modules, in the order of their definition."""
        for module in self.modules():
            if isinstance(module, OperatorModule):
                yield module

    def layout(self) -> Layout:
        """All state components, named "<operator path>.<component>"."""
        components = tuple(
            component
            for operator in self.operators()
            for component in get_kind(operator.kind).components(operator.attributes, operator.name)
        )
        return Layout(components=components, vocab_size=self.VOCAB_SIZE, max_positions=self.MAX_POSITIONS)

    def __call__(self, batch: Batch, memory: Memory) -> Tensor:
        """One step: logits [N, vocab], or [M, vocab] of the rows asked for.

        Every operator learns the step's phase, which its implementation depends on.
        """
        if batch.phase != self._phase:
            self._phase = batch.phase
            for operator in self.operators():
                operator.phase = batch.phase
        logits: Tensor = super().__call__(batch, memory)
        return logits

    def choose(self, implementations: Mapping[str, Mapping[str, str]], here: Facts | None = None) -> None:
        """Set each operator's implementation by phase: operator name (without its layer) -> phase -> implementation.

        Operators not named take the reference; with `here`, so do those whose implementation refuses these facts.
        """
        for operator in self.operators():
            operator.choose(implementations.get(operator.name.rsplit(".", 1)[-1], {}), here)

    def stood_in(self) -> dict[str, int]:
        """Why the reference stands in for implementations of the plan: reason -> number of operators."""
        reasons: dict[str, int] = {}
        for operator in self.operators():
            for reason in dict.fromkeys(r.reason for refusals in operator.stood_in.values() for r in refusals[:1]):
                reasons[reason] = reasons.get(reason, 0) + 1
        return reasons

    def stand_in_labels(self) -> list[str]:
        """`stood_in` as conditions that figures made with this package carry."""
        return [f"PyTorch in place of the plan's kernels of {n} operators: {why}" for why, n in self.stood_in().items()]

    def weight_map(self) -> dict[str, Any]:
        """weights.json: "map" (canonical weight -> source), "float32" (kept so), "left_out" (glob -> reason)."""
        path = self.FOLDER / "weights.json"
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
            return {key: loaded[key] for key in ("map", "float32", "left_out")}
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise Day0Error(f"{path} is damaged", hint="generate again with --force") from error

    def load(self, read: Read, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        """Fill every weight from the checkpoint. `read` gives a tensor by its name there, or raises KeyError.

        Raises Day0Error naming the operator's weight and the checkpoint's tensor when one is missing or mis-shaped.
        """
        mapped = self.weight_map()
        kept = set(mapped["float32"])
        for path, spec, assign in self._weights():
            if path not in mapped["map"]:
                raise Day0Error(f"weights.json does not map {path}", hint="generate the package again")
            tensor = read_weight(path, spec, mapped["map"][path], read)
            assign(tensor.to(dtype=weight_dtype(spec, path in kept, dtype), device=device))

    def fill(self, dtype: torch.dtype, *, seed: int, device: torch.device | str = "cpu") -> None:
        """Random weights of the right shapes: numbers made with them must say so."""
        kept = set(self.weight_map()["float32"])
        generator = torch.Generator(device=device).manual_seed(seed)
        for path, spec, assign in self._weights():
            kind = weight_dtype(spec, path in kept, dtype)
            if kind == torch.int64:
                assign(torch.zeros(spec.shape, dtype=kind, device=device))
                continue
            scale = spec.shape[-1] ** -0.5 if len(spec.shape) > 1 else 0.5
            values = torch.randn(spec.shape, generator=generator, device=device, dtype=torch.float32) * scale
            assign(values.to(kind))

    def _weights(self) -> Iterator[tuple[str, Weight, Callable[[Tensor], None]]]:
        for operator in self.operators():
            for weight, spec in operator.weight_specs.items():
                yield f"{operator.name}.{weight}", spec, _assign(operator, weight)


def read_weight(path: str, spec: Weight, source: Any, read: Read) -> Tensor:
    """The weight `path` of a package from the checkpoint, in the checkpoint's dtype.

    Raises Day0Error naming the checkpoint's tensor: missing, of another shape, quantised; or a source that is none.
    """
    try:
        names = tensors_read(source)
    except ValueError as error:
        raise Day0Error(f"weights.json: {path}: {error}", hint="correct it, or generate with --force") from error
    try:
        tensors = {name: read(name) for name in names}
    except KeyError as error:
        raise Day0Error(
            f"{path} needs the checkpoint tensor {error.args[0]}, which is missing", hint=INCOMPLETE
        ) from error
    wrong = misfits(source, spec.shape, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    if wrong:
        raise Day0Error(f"{path} is {list(spec.shape)}: {wrong[0]}", hint=INCOMPLETE)
    tensor = build(source, tensors.__getitem__)
    if spec.dtype != "int64" and (not tensor.is_floating_point() or tensor.element_size() < 2):
        raise Day0Error(
            f"{path} is a float weight, the checkpoint's {next(iter(tensors))} holds {tensor.dtype} values",
            hint="this checkpoint is quantised, which day0 does not read yet: take the bf16 one",
        )
    return tensor


def weight_dtype(spec: Weight, kept: bool, activation: torch.dtype) -> torch.dtype:
    """Storage dtype of a weight in a package of this activation dtype; `kept`: the recipe keeps it in float32."""
    if spec.dtype == "int64":
        return torch.int64
    if spec.dtype == "float32" or kept:
        return torch.float64 if activation == torch.float64 else torch.float32
    return activation


def _assign(operator: OperatorModule, weight: str) -> Callable[[Tensor], None]:
    def assign(tensor: Tensor) -> None:
        setattr(operator, weight, nn.Parameter(tensor, requires_grad=False))

    return assign
