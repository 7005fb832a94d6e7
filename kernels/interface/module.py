"""The base of the operator modules in a generated package."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from day0.artifacts.contract import Facts, Refusal
from day0.kernels.interface.batch import Batch, Phase
from day0.kernels.interface.choice import Choice
from day0.kernels.interface.memory import Memory
from day0.kernels.registry import get_kind, resolve, resolve_choices


class OperatorModule(nn.Module):
    """Owns an operator's weights and calls the implementation that the plan chose for the step's phase.

    A subclass (a kind's `module.py.j2`) sets `kind` and writes out the forward ports, ending in `self.run(...)`.
    `name` ("layers.3.attention") is where its state stands in Memory.
    """

    kind: ClassVar[str]

    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__()
        self.name = name
        self.attributes = get_kind(self.kind).parse(attributes)
        self.implementations: dict[str, str] = {}
        self.stood_in: dict[str, tuple[Refusal, ...]] = {}
        self.phase: Phase = "prefill"  # of the step under way, for operators that are not given a batch
        self.weight_specs = dict(get_kind(self.kind).weights(self.attributes))
        for weight, spec in self.weight_specs.items():
            dtype = torch.int64 if spec.dtype == "int64" else None
            self.register_parameter(weight, nn.Parameter(torch.empty(spec.shape, dtype=dtype), requires_grad=False))
        self.local_components = tuple(c.name for c in get_kind(self.kind).state(self.attributes))

    def choose(self, implementations: Mapping[str, str], here: Facts | None = None) -> None:
        """Which implementation computes each phase; phases not named take the reference ("torch").

        With `here`, the facts of dtype and device where the operator runs, the reference stands in for what refuses
        them; `stood_in` keeps the refusals by phase. Raises KeyError on an unknown implementation.
        """
        self.implementations, self.stood_in = {}, {}
        for phase, name in implementations.items():
            refused = get_kind(self.kind).implementation(name).contract.refusals(here or {})
            self.implementations[phase] = "torch" if refused else name
            if refused:
                self.stood_in[phase] = tuple(refused)

    def run(
        self, *ports: Tensor | None, method: str = "", batch: Batch | None = None, memory: Memory | None = None
    ) -> Any:
        """Call the chosen implementation with this operator's attributes, weights and state pools."""
        phase = batch.phase if batch is not None else self.phase
        function = resolve(self.kind, self.implementations.get(phase, "torch"), method)
        return function(self.attributes, *ports, **self._named(batch, memory))

    def choices(
        self, *ports: Tensor | None, batch: Batch | None = None, memory: Memory | None = None
    ) -> Mapping[str, Choice]:
        """What the method "" chooses on these ports and by which scores, as the kind's reference computes them.

        For a step in which every sequence begins; its state may have been written already.
        """
        function = resolve_choices(self.kind)
        return {} if function is None else function(self.attributes, *ports, **self._named(batch, memory))

    def _named(self, batch: Batch | None, memory: Memory | None) -> dict[str, Any]:
        extra: dict[str, Any] = dict(self._parameters)
        if "batch" in get_kind(self.kind).context:
            extra["batch"] = batch
        if memory is not None:
            extra |= {component: memory[f"{self.name}.{component}"] for component in self.local_components}
        return extra
