"""Precision: the package's rounding error is at most twice the reference's own, tensor by tensor.

Three runs of the same weights: the reference in float64 (the truth), the reference in the serving dtype (the budget),
the package in the serving dtype. In the isolated mode each layer of all three is fed the truth's layer input rounded to
the serving dtype, so that errors do not pile up over layers and a discrete choice that flips stays in its layer; in the
propagated mode each runs on its own activations.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from day0.align.capture import Call, Capture, capture_package
from day0.align.exactness import scores_port
from day0.align.ties import LIMIT, Located, Ties, scores_at, tied_rows
from day0.align.training_side import Reference, ReferenceCapture, capture_reference
from day0.artifacts.alignment import Mode, Prompt, Row, UnstableRows, Verdict
from day0.kernels.interface.package import Package
from day0.reference.match import arrange
from day0.reference.scores import may_be_chosen

WARNING = 1.5
# A row whose error is this many times its tensor's median row error was not rounded: a discrete choice differs.
JUMP = 10.0
_PROBES = 2
_SHOWN_ROWS = 32


@dataclass
class Precision:
    rows: list[Row] = field(default_factory=list)
    unstable: list[UnstableRows] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)  # outputs that the reference did not record in this dtype


@dataclass(frozen=True)
class _Compared:
    """One tensor of a prompt in all its runs, as [N, channels]: truth, reference, probes of the reference, package."""

    layer: int | None
    operator: str
    kind: str
    port: str
    location: str
    truth: Tensor
    reference: Tensor
    probes: tuple[Tensor, ...]
    package: Tensor


@dataclass
class _Sums:
    """Squared errors of one tensor over all prompts, rows that sit on a tie left out."""

    first: _Compared
    reference: float = 0.0
    package: float = 0.0
    scale: float = 0.0
    rows: int = 0  # how many were compared
    broken: int = 0  # rows that are not finite in the package alone


def ulp_floor(dtype: torch.dtype, width: int) -> float:
    """The relative error that rounding alone may leave in a tensor of `width` channels, however well it is computed.

    One rounding is an error spread evenly over half an ulp, at most u = eps / 2 of the value: u / sqrt(3) in RMS. The
    value itself is rounded once to `dtype`. A sum over `width` products is rounded log2(width) times in sequence in
    float32 (pairwise summation; Higham, Accuracy and Stability of Numerical Algorithms, 4.2), independently, so that
    the RMS grows with the square root.
    """
    unit, single = torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    return (unit + single * math.sqrt(math.log2(max(width, 2)))) / math.sqrt(3)


def check_precision(
    package: Package,
    truth: Reference,
    reference: Reference,
    located: Located,
    prompts: Sequence[Prompt],
    *,
    modes: Sequence[Mode],
) -> Precision:
    """Compare errors over all prompts together.

    `package` and `reference` are in the serving dtype, `truth` holds the weights of `reference` in float64. `located`
    says where the reference holds each operator's output, as found by the exactness gate.
    """
    result = Precision()
    gate = f"precision {str(reference.dtype).removeprefix('torch.')}"
    for mode in modes:
        sums: dict[tuple[int | None, str, str], _Sums] = {}
        for prompt in prompts:
            run = _Captures.isolated if mode == "isolated" else _Captures.propagated
            captures = run(package, truth, reference, list(prompt.ids))
            tie = _Ties(len(prompt.ids), tied_rows(captures.package, captures.truth, captures.reference, located, mode))
            boundaries = list(captures.boundaries())
            for tensor in boundaries:
                tie.moved_by_reference(tensor, _floor(reference.dtype, tensor))
            traced = captures.operators(located, result.lost) if mode == "isolated" else ()
            for tensor in chain(boundaries, traced):
                _add(sums, tensor, tie.stable_rows(tensor, _floor(reference.dtype, tensor)))
            result.unstable.append(tie.report(gate, mode, prompt.name))
        rows = [_row(total, reference.dtype, gate, mode) for total in sums.values()]
        # In the order of execution: what an operator got wrong shows in its layer after it.
        result.rows += sorted(rows, key=lambda row: row.kind == "")
    return result


@dataclass(frozen=True)
class _Captures:
    """The runs of one prompt. A probe is the reference with layer inputs moved by about one rounding: what that flips
    is a tie, whoever flips it.
    """

    truth: ReferenceCapture
    reference: ReferenceCapture
    probes: list[ReferenceCapture]
    package: Capture

    @classmethod
    def isolated(cls, package: Package, truth: Reference, reference: Reference, ids: list[int]) -> "_Captures":
        free = capture_reference(truth, ids, traced=False)
        force = {layer: value.to(reference.dtype) for layer, value in free.layer_inputs.items()}
        return cls(
            capture_reference(truth, ids, force=force),
            capture_reference(reference, ids, force=force),
            [capture_reference(reference, ids, force=jitter(force, reference.dtype, seed=0), traced=False)],
            capture_package(package, ids, force=force),
        )

    @classmethod
    def propagated(cls, package: Package, truth: Reference, reference: Reference, ids: list[int]) -> "_Captures":
        """Layers and logits only: what each operator does, the isolated mode says better."""
        captured = capture_package(package, ids)
        chooses = any(call.choices for call in captured.calls)
        own = capture_reference(reference, ids, traced=chooses)
        first = {0: own.layer_inputs[0]}
        probes = [
            capture_reference(reference, ids, force=jitter(first, reference.dtype, seed), traced=False)
            for seed in range(_PROBES)
        ]
        return cls(capture_reference(truth, ids, traced=chooses), own, probes, captured)

    def boundaries(self) -> Iterator[_Compared]:
        """Layer outputs and logits."""
        runs = (self.truth, self.reference, *self.probes)
        entries: list[tuple[int | None, str, list[Tensor], Tensor]] = [
            (layer, "layer", [run.layer_outputs[layer] for run in runs], output)
            for layer, output in self.package.layer_outputs.items()
        ]
        entries.append((None, "logits", [run.logits for run in runs], self.package.logits))
        for layer, name, held, output in entries:
            truth, reference, *probes = (t.reshape(len(output), -1) for t in held)
            yield _Compared(layer, name, "", "", "", truth, reference, tuple(probes), output.reshape(len(output), -1))

    def operators(self, located: Located, lost: set[str]) -> Iterator[_Compared]:
        """Operator outputs; `lost` takes the names of those that not both runs of the reference recorded."""
        recorded = [run.by_location() for run in (self.truth, self.reference)]
        for call in self.package.calls:
            for number, output in enumerate(call.outputs):
                places = located.get((call.path, call.method, number), [])
                # A cast that does nothing in float64 makes another tensor in float32: not every place is in both.
                match = next((m for m in places if all(_holds(run, m.location, output) for run in recorded)), None)
                if match is None:
                    lost |= {f"{call.path} {call.port(number)}"} if places else set()
                    continue
                rows = [arrange(run[match.location], match.axes).reshape(len(output), -1) for run in recorded]
                truth, reference = rows
                port, package = call.port(number), output.reshape(len(output), -1)
                yield _Compared(
                    call.layer, call.operator, call.kind, port, match.location, truth, reference, (), package
                )
            yield from self._scores(call, located, lost)

    def _scores(self, call: Call, located: Located, lost: set[str]) -> Iterator[_Compared]:
        """The scores that a call's choices are made by, where all runs may choose; elsewhere 0."""
        for name, choice in call.choices.items():
            port = scores_port(name)
            for match in located.get((call.path, call.method, port), [])[:1]:
                exact, rounded = (scores_at(run, match.location, choice) for run in (self.truth, self.reference))
                if exact is None or rounded is None:
                    lost.add(f"{call.path} {port}")
                    continue
                allowed = exact.isfinite() & rounded.isfinite() & may_be_chosen(choice.scores)
                truth, own, package = (s.masked_fill(~allowed, 0.0) for s in (exact, rounded, choice.scores))
                yield _Compared(call.layer, call.operator, call.kind, port, match.location, truth, own, (), package)


def _holds(run: Mapping[str, Tensor], location: str, output: Tensor) -> bool:
    return location in run and run[location].numel() == output.numel()


class _Ties:
    """Rows of one prompt where a discrete choice, not rounding, separates two runs.

    A row jumps when its error is JUMP times its tensor's usual one. It is left out of the comparison

    - where the reference or a probe of it jumps, in that tensor and in all operators of that layer, and the row depends
      on a choice that may have flipped: its scores show a tie, or the reference does not show them (`Ties`);
    - where the package alone jumps, the scores of a choice that the row depends on show a tie, and the row is one that
      the tensor could hold. A flipped choice gives a row like the others, at most as large as the largest of them, so
      that it lies no further from the truth than the sum of both norms.

    A row that is not finite in the package alone is never left out.
    """

    def __init__(self, rows: int, ties: Ties) -> None:
        self.ties = ties
        self.of_layer: dict[int | None, Tensor] = {}
        self.by_reference = torch.zeros(rows, dtype=torch.bool)
        self.by_package = torch.zeros(rows, dtype=torch.bool)

    def moved_by_reference(self, tensor: _Compared, floor: float) -> Tensor:
        """[N] bool: the rows that jump in the reference. Layers come first: their operators inherit what they find."""
        usual = _usual(tensor, floor)
        moved = row_errors(tensor.reference, tensor.truth) > JUMP * usual
        for probe in tensor.probes:
            moved |= row_errors(probe, tensor.truth) > JUMP * usual
        none = torch.zeros_like(moved)
        moved &= self.ties.shown.get(tensor.layer, none) | self.ties.unknown.get(tensor.layer, none)
        moved |= self.of_layer.setdefault(tensor.layer, moved)
        self.by_reference |= moved
        return moved

    def stable_rows(self, tensor: _Compared, floor: float) -> Tensor:
        """[N] bool: the rows of this tensor to compare. Remembers the others, and who moved them."""
        broken = broken_rows(tensor)
        moved = self.moved_by_reference(tensor, floor)
        alone = (row_errors(tensor.package, tensor.truth) > JUMP * _usual(tensor, floor)) & ~moved & ~broken
        alone &= self.ties.shown.get(tensor.layer, torch.zeros_like(alone)) & _possible_rows(tensor)
        self.by_package |= alone
        return ~(moved | alone) | broken

    def report(self, gate: str, mode: Mode, prompt: str) -> UnstableRows:
        reference, package = int(self.by_reference.sum()), int(self.by_package.sum())
        return UnstableRows(
            dtype=gate.removeprefix("precision "),
            mode=mode,
            prompt=prompt,
            rows=tuple((self.by_reference | self.by_package).nonzero().flatten().tolist()[:_SHOWN_ROWS]),
            reference=reference,
            package=package,
            total=len(self.by_reference),
        )


def _floor(dtype: torch.dtype, tensor: _Compared) -> float:
    return ulp_floor(dtype, tensor.truth.shape[1])


def _usual(tensor: _Compared, floor: float) -> float:
    return max(float(row_errors(tensor.reference, tensor.truth).median()), floor)


def broken_rows(tensor: _Compared) -> Tensor:
    """[N] bool: NaN in the package where neither truth nor reference has one in that row; infinities likewise."""

    def only_package(is_bad: Callable[[Tensor], Tensor]) -> Tensor:
        return is_bad(tensor.package).any(1) & ~(is_bad(tensor.truth) | is_bad(tensor.reference)).any(1)

    return only_package(torch.isnan) | only_package(torch.isinf)


def _possible_rows(tensor: _Compared) -> Tensor:
    """[N] bool: whether the package's row is one that another choice may give (see `_Ties`)."""
    truth, package = (t.to(torch.float64).nan_to_num(0.0, 0.0, 0.0) for t in (tensor.truth, tensor.package))
    size = truth.norm(dim=1)
    possible: Tensor = (package - truth).norm(dim=1) <= size + size.max()
    return possible


def row_errors(computed: Tensor, exact: Tensor) -> Tensor:
    """[N] relative L2 error of each row, in float64; a row that is not finite is infinitely wrong."""
    a, b = computed.to(torch.float64), exact.to(torch.float64)
    same = torch.isinf(b) & (a == b)
    a, b = a.masked_fill(same, 0.0), b.masked_fill(same, 0.0)
    difference = (a - b).norm(dim=1)
    # A row of zeros, as padding of choices leaves, is measured against the tensor's usual row.
    scale = b.norm(dim=1)
    scale = torch.where(scale > 0, scale, scale.mean().clamp(min=torch.finfo(torch.float64).tiny))
    errors: Tensor = difference / scale
    return errors.nan_to_num(nan=math.inf, posinf=math.inf)


def _add(sums: dict[tuple[int | None, str, str], _Sums], tensor: _Compared, stable: Tensor) -> None:
    total = sums.setdefault((tensor.layer, tensor.operator, tensor.port), _Sums(tensor))
    truth = tensor.truth[stable].to(torch.float64)
    finite = torch.isfinite(truth)
    for name, run in (("reference", tensor.reference), ("package", tensor.package)):
        difference = (run[stable].to(torch.float64) - truth)[finite]
        setattr(total, name, getattr(total, name) + float(difference.square().sum()))
    total.scale += float(truth[finite].square().sum())
    total.rows += int(stable.sum())
    total.broken += int(broken_rows(tensor).sum())


def _row(total: _Sums, dtype: torch.dtype, gate: str, mode: Mode) -> Row:
    floor = ulp_floor(dtype, total.first.truth.shape[1])
    scale = math.sqrt(total.scale) or 1.0
    wrong, own = math.sqrt(total.package) / scale, math.sqrt(total.reference) / scale
    ratio = wrong / max(own, floor)
    note = "above 1.5 times the reference's own error" if WARNING < ratio <= LIMIT else ""
    if total.broken:
        wrong = ratio = math.inf
        note = f"{total.broken} rows not finite in the package alone"
    verdict: Verdict = "holds" if ratio <= LIMIT else "does not hold"
    if not total.rows:
        verdict, note = "inconclusive", "every row sits on a tie: nothing is compared"
    return Row(
        gate=gate,
        prompt="all",
        mode=mode,
        layer=total.first.layer,
        operator=total.first.operator,
        kind=total.first.kind,
        port=total.first.port,
        error=wrong,
        bound=LIMIT * max(own, floor),
        ratio=ratio,
        verdict=verdict,
        location=total.first.location,
        note=note,
    )


def jitter(values: Mapping[int, Tensor], dtype: torch.dtype, seed: int) -> dict[int, Tensor]:
    """The values in `dtype`, each element moved by about one rounding."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.finfo(dtype).eps / 2
    return {
        layer: (value.double() * (1 + unit * torch.randn(value.shape, generator=generator, dtype=torch.float64))).to(
            dtype
        )
        for layer, value in values.items()
    }
