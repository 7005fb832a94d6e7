"""Holds an implementation of a kind to its float64 reference, step by step over sequences of scattered memory.

Pages and slots are handed out in random order and filled with NaN, so that reading what nobody wrote shows. Every
sequence keeps its memory from step to step. The bound is the house's precision gate: an error of at most twice that of
the plain reference in the same dtype, plus one rounding of the result.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor

from day0.artifacts.layout import PAGE_TOKENS, Component, Layout
from day0.kernels.interface.attributes import Attributes
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.kind import Kind
from day0.kernels.interface.memory import Memory
from day0.kernels.registry import get_kind, resolve

Phase = Literal["prefill", "decode", "verify"]
REFERENCE = "torch"
ALLOWED_RATIO = 2.0


@dataclass(frozen=True)
class Case:
    """One problem: attributes, and per sequence how many tokens it brings to each step (0: it sits that step out).

    `ports(a, n, generator)` draws one sequence's ports, [n, ...] float64 or integer on the CPU, None for a port left
    out; `weights(a, generator)` the weights. A step in which every sequence brings one token runs as decode.
    """

    name: str
    attributes: Mapping[str, Any]
    chunks: tuple[tuple[int, ...], ...]
    ports: Callable[[Any, int, torch.Generator], tuple[Tensor | None, ...]]
    weights: Callable[[Any, torch.Generator], Mapping[str, Tensor]]
    method: str = ""
    phase: Phase | None = None


@dataclass(frozen=True)
class OwnCase:
    """A problem of kernels that are no operator: `run(dtype, device, seed)` compares and gives the findings."""

    name: str
    run: Callable[[torch.dtype, str, int], "list[Finding]"]


@dataclass(frozen=True)
class Finding:
    """How far one result of one step is from float64, and how far the plain reference in the same dtype is."""

    case: str
    step: int
    what: str
    error: float
    plain_error: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.error <= self.bound  # NaN does not hold


class _Side:
    """One implementation with its own memory."""

    def __init__(
        self, kind: Kind[Any], implementation: str, case: Case, dtype: torch.dtype, device: str, pages: int, slots: int
    ) -> None:
        self.attributes: Attributes = kind.parse(case.attributes)
        self.function = resolve(kind.name, implementation, case.method)
        self.kind, self.dtype, self.device = kind, dtype, device
        layout = Layout(components=kind.components(self.attributes), vocab_size=1)
        self.memory = Memory.allocate(layout, pages=pages, slots=slots, dtype=dtype, device=device, poison=True)

    def cast(self, x: Tensor | None, *, float32: bool = False) -> Tensor | None:
        if x is None or not x.is_floating_point():
            return x if x is None else x.to(self.device)
        kept = torch.float32 if float32 and self.dtype != torch.float64 else self.dtype
        return x.to(self.device, kept)

    def step(self, ports: list[Tensor | None], weights: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        specs = self.kind.weights(self.attributes)
        extra: dict[str, Any] = {
            name: self.cast(w, float32=specs[name].dtype == "float32") for name, w in weights.items()
        }
        if "batch" in self.kind.context:
            extra["batch"] = batch
        result = self.function(self.attributes, *(self.cast(p) for p in ports), **extra, **dict(self.memory))
        return tuple(_flatten(result))


class _Problem:
    """A case's ports and weights, rounded to a dtype, and the pages and slots that its sequences own."""

    def __init__(self, kind: Kind[Any], case: Case, dtype: torch.dtype, seed: int) -> None:
        self.kind, self.case = kind, case
        a = kind.parse(case.attributes)
        generator = torch.Generator().manual_seed(seed)
        lengths = [sum(chunk) for chunk in case.chunks]
        sequences = [case.ports(a, n, generator) for n in lengths]
        # The ports' rounding is nobody's error: all sides get the same values.
        self.ports = [tuple(_rounded(port, dtype) for port in ports) for ports in sequences]
        self.weights = {
            name: _rounded_weight(kind, a, name, w, dtype) for name, w in case.weights(a, generator).items()
        }
        order = random.Random(seed)
        needed = [-(-n // PAGE_TOKENS) for n in lengths]
        self.total, self.slots = sum(needed) + 3, len(lengths) + 2
        free = order.sample(range(self.total), sum(needed))
        self.pages = [[free.pop() for _ in range(n)] for n in needed]
        self.owned = order.sample(range(self.slots), len(lengths))

    def run(self, implementation: str, dtype: torch.dtype, device: str) -> Iterator[dict[str, Tensor]]:
        """Per step the outputs and what the sequences then have of each state component, by name."""
        side = _Side(self.kind, implementation, self.case, dtype, device, self.total, self.slots)
        for number, (active, batch_of, ports) in enumerate(_steps(self.case, self.ports, self.pages, self.owned)):
            assert active, "a step without any tokens"
            found = {f"output {i}": x for i, x in enumerate(side.step(ports, self.weights, batch_of(device)))}
            done = [sum(chunk[: number + 1]) for chunk in self.case.chunks]
            for component in self.kind.components(side.attributes):
                found[component.name] = _state(side.memory[component.name], component, self.pages, self.owned, done)
            yield found


def check(
    kind_name: str, implementation: str, case: Case, *, dtype: torch.dtype, device: str = "cpu", seed: int = 0
) -> list[Finding]:
    """Run a case on an implementation, the plain reference in the same dtype and in float64; one finding per output
    of a step and per state component after it."""
    problem = _Problem(get_kind(kind_name), case, dtype, seed)
    sides = (
        problem.run(REFERENCE, torch.float64, "cpu"),
        problem.run(REFERENCE, dtype, "cpu"),
        problem.run(implementation, dtype, device),
    )
    return [
        _finding(case.name, number, what, exact[what], plain[what], tested[what], dtype)
        for number, (exact, plain, tested) in enumerate(zip(*sides, strict=True))
        for what in exact
        if exact[what].numel()
    ]


def results(
    kind_name: str, implementation: str, case: Case, *, dtype: torch.dtype, device: str = "cpu", seed: int = 0
) -> Iterator[dict[str, Tensor]]:
    """What `check` looks at of the implementation, step by step: its outputs and its sequences' memory, by name."""
    return _Problem(get_kind(kind_name), case, dtype, seed).run(implementation, dtype, device)


def findings(folder: str, case: Case | OwnCase, *, dtype: torch.dtype, device: str, seed: int = 0) -> list[Finding]:
    """A case of `kernels/<folder>/` held to its reference; of a kind, it is the implementation "triton"."""
    if isinstance(case, OwnCase):
        return case.run(dtype, device, seed)
    return check(folder, "triton", case, dtype=dtype, device=device, seed=seed)


def relative_l2(x: Tensor, exact: Tensor) -> float:
    """|x - exact| / |exact| in float64 on the CPU; the absolute error where `exact` is zero."""
    reference = exact.detach().cpu().double()
    norm = float(reference.norm())
    return float((x.detach().cpu().double() - reference).norm()) / (norm or 1.0)


def allowed_error(plain_error: float, dtype: torch.dtype) -> float:
    """How large an error against float64 may be where the plain reference in this dtype has that one."""
    # Half a unit in the last place: the rounding that a result in this dtype cannot avoid, and that tensor cores give
    # the operands of what goes into a float32 state.
    return ALLOWED_RATIO * plain_error + torch.finfo(dtype).eps / 2


def _finding(
    case: str, step: int, what: str, exact: Tensor, plain: Tensor, tested: Tensor, dtype: torch.dtype
) -> Finding:
    if not exact.is_floating_point():
        differing = float((tested.cpu() != exact).sum())
        return Finding(case, step, what, differing, 0.0, 0.0)
    error, plain_error = relative_l2(tested, exact), relative_l2(plain, exact)
    bound = allowed_error(plain_error, dtype) if exact.dtype == torch.float64 else ALLOWED_RATIO * plain_error
    return Finding(case, step, what, error, plain_error, bound)


def _steps(
    case: Case, sequences: list[tuple[Tensor | None, ...]], pages: list[list[int]], slots: list[int]
) -> Iterator[tuple[list[int], Callable[[str], Batch], list[Tensor | None]]]:
    done = [0] * len(sequences)
    for lengths in zip_longest(*case.chunks, fillvalue=0):
        active = [s for s, n in enumerate(lengths) if n]
        before = list(done)
        phase = case.phase or ("decode" if all(lengths[s] == 1 and before[s] for s in active) else "prefill")

        def batch(
            device: str,
            active: list[int] = active,
            before: list[int] = before,
            lengths: tuple[int, ...] = lengths,
            phase: Phase = phase,
        ) -> Batch:
            return Batch.pack(
                [[0] * lengths[s] for s in active],
                context_lens=[before[s] for s in active],
                slots=[slots[s] for s in active],
                pages=[pages[s] for s in active],
                phase=phase,
                device=device,
            )

        ports: list[Tensor | None] = []
        for columns in zip(*sequences, strict=True):
            parts = [
                column[before[s] : before[s] + lengths[s]] for s, column in enumerate(columns) if column is not None
            ]
            ports.append(torch.cat(parts) if parts else None)
        for s in active:
            done[s] += lengths[s]
        yield active, batch, ports


def _state(pool: Tensor, component: Component, pages: list[list[int]], slots: list[int], done: list[int]) -> Tensor:
    """What the sequences have in memory, one after the other: complete entries, or slots of those that have begun."""
    if component.role == "per_sequence":
        return pool[[slot for slot, n in zip(slots, done, strict=True) if n]].flatten()
    step = component.tokens_per_entry
    rows = [
        (pages[s][t // PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS) // step
        for s, n in enumerate(done)
        for t in range(0, n // step * step, step)
    ]
    return pool[rows].flatten()


def _rounded(port: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return port if port is None or not port.is_floating_point() else port.to(dtype).double()


def _rounded_weight(kind: Kind[Any], a: Attributes, name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    if not weight.is_floating_point():
        return weight
    return weight.to(torch.float32 if kind.weights(a)[name].dtype == "float32" else dtype).double()


def _flatten(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    else:
        for part in result:
            yield from _flatten(part)
