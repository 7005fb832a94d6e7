"""The stage: package and repo -> how close the package is to the reference, gate by gate."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from day0.align.capture import capture_package
from day0.align.exactness import BOUND, Exactness, Expected, check_exactness
from day0.align.exactness import GATE as EXACTNESS
from day0.align.gates import (
    exactness_gate,
    greedy_gate,
    invariance_gate,
    kept_rows,
    matrix_gate,
    overall,
    precision_gate,
    rows_gate,
    self_gate,
)
from day0.align.golden import GATE as GOLDEN
from day0.align.golden import compare_golden, read_golden
from day0.align.greedy import TOKENS, compare_greedy
from day0.align.invariance import GATE as INVARIANCE
from day0.align.invariance import check_invariance
from day0.align.layer_by_layer import hollow_package
from day0.align.matrix import GATE as MATRIX
from day0.align.matrix import all_cells, check_matrix, few_cells
from day0.align.precision import Precision, check_precision
from day0.align.prompts import given_prompts, random_prompts, text_prompts
from day0.align.self_check import CACHED, check_reference
from day0.align.stream import stream_exactness
from day0.align.ties import tied_rows
from day0.align.training_side import Reference, as_reference, capture_reference
from day0.artifacts.alignment import (
    Alignment,
    Checksum,
    Exclusion,
    Gate,
    GreedyCell,
    InvarianceCell,
    MatrixCell,
    Mode,
    Prompt,
    Row,
    SelfCheck,
)
from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Inventory
from day0.artifacts.manifest import Manifest
from day0.engine.package import load_package
from day0.errors import Day0Error
from day0.kernels.interface.package import Package
from day0.language.recipe import ReferenceNotes, load_recipe, text_config
from day0.reference.float64 import loaded_in_float64
from day0.reference.load import load_reference
from day0.repo.model_repo import ModelRepo
from day0.repo.tokenizer import eos_ids

_EXACTNESS_PROMPTS = 2
_GREEDY_PROMPTS = 3
_SHORT = 5  # tokens of the state matrix' short prompt
_PRECISION_MODES: dict[torch.dtype, tuple[Mode, ...]] = {
    torch.float32: ("isolated", "propagated"),
    # Router and index choices flip under bf16 rounding: its end logits say nothing, its layers one by one do.
    torch.bfloat16: ("isolated",),
}


@dataclass(frozen=True)
class Options:
    """`greedy_tokens`: length of the greedy continuations. `dtypes`: serving dtypes the precision gate judges.

    `texts`: further prompts, in words. `seed` draws the random prompts. `golden`: a recording to compare with, in place
    of the reference. `stream`: one layer at a time, exactness only, for models that do not fit in memory twice.
    `matrix`: the state matrix, too, in few cells that hold any two features or in all of them.
    """

    greedy_tokens: int = TOKENS
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    texts: tuple[str, ...] = ()
    seed: int = 0
    golden: Path | None = None
    stream: bool = False
    matrix: Literal["few", "all"] | None = None


@dataclass
class _Findings:
    tell: Callable[[Gate], None]
    gates: list[Gate] = field(default_factory=list)
    exactness: Exactness = field(default_factory=Exactness)
    precision: list[Precision] = field(default_factory=list)
    self_checks: list[SelfCheck] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)
    greedy: list[GreedyCell] = field(default_factory=list)
    invariance: list[InvarianceCell] = field(default_factory=list)
    checksums: list[Checksum] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    golden_rows: list[Row] = field(default_factory=list)
    matrix: list[MatrixCell] = field(default_factory=list)

    def decide(self, gate: Gate) -> None:
        """A gate is decided: keep it, and tell whoever waits."""
        self.gates.append(gate)
        self.tell(gate)


def run(
    repo: ModelRepo,
    package_folder: Path,
    inventory: Inventory,
    options: Options,
    produced_by: Provenance,
    *,
    tell: Callable[[Gate], None] = lambda gate: None,
) -> Alignment:
    """Compare a package with its reference, and with itself; `tell` hears of each gate as soon as it is decided.

    A package of the first layers is compared with as many layers of the reference. One with random weights can only be
    compared with itself. Raises Day0Error: no package, no reference, weights missing.
    """
    _refuse_beside_stream(options)
    manifest = Manifest.read(package_folder)
    notes, end_ids = _recipe_notes(package_folder, repo)
    found = _Findings(tell)
    # Not float64: there every kernel is stood in for, which is what exactness means by the package's function.
    hollow = hollow_package(package_folder)
    labels = [*manifest.labels, *hollow.stand_in_labels(), *_leak_condition(notes)]
    if options.stream:
        if manifest.dummy_weights:
            raise Day0Error("the package has random weights", hint="generate it without --dummy-weights")
        _streamed(found, repo, package_folder, end_ids, options, notes)
        return _alignment(found, inventory.model, [*labels, _STREAMED], produced_by)
    _choose_prompts(found, hollow, repo, end_ids, options)
    exact_package = load_package(package_folder, repo, dtype=torch.float64)
    if options.golden is not None:
        _against_golden(found, options.golden, package_folder, exact_package, repo, max(BOUND, notes.float64_leak))
    if manifest.dummy_weights:
        reason = "the package has random weights, the reference the checkpoint's"
        for name in (EXACTNESS, "greedy"):
            found.decide(Gate(name=name, verdict="inconclusive", detail=reason))
    elif options.golden is None:
        layers = None if manifest.whole else manifest.layers
        side = _TrainingSide(repo, layers, notes)
        _against_reference(found, side, package_folder, exact_package, repo, options)
    longest = max(found.prompts, key=lambda prompt: len(prompt.ids))
    found.invariance, found.checksums = check_invariance(exact_package, longest.ids)
    found.decide(invariance_gate(INVARIANCE, found.invariance))
    if options.matrix is not None:
        serving = load_package(package_folder, repo, dtype=torch.float32)
        cells = few_cells() if options.matrix == "few" else all_cells()
        prompts = {"short": longest.ids[:_SHORT], "long": longest.ids}
        found.matrix += check_matrix(serving, exact_package, prompts, cells)
        found.decide(matrix_gate(MATRIX, found.matrix))
    return _alignment(found, inventory.model, labels, produced_by)


def _leak_condition(notes: ReferenceNotes) -> list[str]:
    if notes.float64_leak <= BOUND:
        return []
    return [f"float64 held to {notes.float64_leak:.0e}, not {BOUND:.0e}: the reference computes in float32 in places"]


def _refuse_beside_stream(options: Options) -> None:
    given = {
        "--golden": options.golden is not None,
        "--text": bool(options.texts),
        "--greedy-tokens": options.greedy_tokens != TOKENS,
        "dtypes": options.dtypes != Options.dtypes,
        "--matrix": options.matrix is not None,
    }
    for name in (name for name, is_given in given.items() if options.stream and is_given):
        raise Day0Error(f"{name} and --stream do not go together", hint="leave one of them out")


_STREAMED = "layers compared one at a time in float64; precision, greedy, invariance and scores of choices not judged"


def _streamed(
    found: _Findings, repo: ModelRepo, folder: Path, end_ids: Sequence[int], options: Options, notes: ReferenceNotes
) -> None:
    layout = hollow_package(folder).layout()
    prompts = random_prompts(layout.vocab_size, end_ids, max_positions=layout.max_positions, seed=options.seed)
    found.prompts += prompts[:_EXACTNESS_PROMPTS]
    bound = max(BOUND, notes.float64_leak)
    streamed = stream_exactness(repo, folder, found.prompts, bound=bound, layer_numbers=notes.layer_numbers)
    first = streamed.bad[0] if streamed.bad else None
    found.exactness = Exactness(rows=streamed.rows, first_bad=first, also_bad=streamed.bad[1:])
    found.decide(exactness_gate(EXACTNESS, found.exactness))


def _against_golden(
    found: _Findings, path: Path, folder: Path, exact_package: Package, repo: ModelRepo, bound: float
) -> None:
    golden = read_golden(path)
    serving = exact_package if golden.dtype == torch.float64 else load_package(folder, repo, dtype=golden.dtype)
    result = compare_golden(exact_package, serving, golden, bound=bound)
    found.golden_rows = result.rows
    found.greedy += result.greedy
    found.prompts += result.prompts
    # A recording holds what layers give, not what operators do.
    against = f"{golden.model} recorded in {_name(golden.dtype)}, layer by layer: no operator is compared or named"
    found.decide(rows_gate(GOLDEN, result.rows, against))
    if result.greedy:
        found.decide(greedy_gate("greedy", result.greedy))


class _TrainingSide:
    """The reference in the dtypes asked for, each loaded once."""

    def __init__(self, repo: ModelRepo, layers: int | None, notes: ReferenceNotes) -> None:
        self.repo, self.layers, self.notes = repo, layers, notes
        self.loaded: dict[torch.dtype, Reference] = {}

    def exact(self) -> Reference:
        if torch.float64 not in self.loaded:
            model = loaded_in_float64(self.repo, layers=self.layers)
            self.loaded[torch.float64] = as_reference(model, torch.float64)
        return self.loaded[torch.float64]

    def serving(self, dtype: torch.dtype) -> Reference:
        if dtype not in self.loaded:
            self.loaded[dtype] = as_reference(load_reference(self.repo, dtype=dtype, layers=self.layers), dtype)
        return self.loaded[dtype]

    def truth_of(self, dtype: torch.dtype) -> Reference:
        """Float64 with the weights as the serving dtype holds them: rounding them is not the package's error."""
        if dtype == torch.float32 and all(t.dtype in _EXACT_IN_FLOAT32 for t in self.repo.tensors.values()):
            return self.exact()
        return as_reference(load_reference(self.repo, dtype=dtype, layers=self.layers).double(), torch.float64)


_EXACT_IN_FLOAT32 = frozenset({"F32", "BF16", "F16", "I64", "I32", "U8", "BOOL"})


def _against_reference(
    found: _Findings, side: _TrainingSide, folder: Path, exact_package: Package, repo: ModelRepo, options: Options
) -> None:
    bound = max(BOUND, side.notes.float64_leak)
    exact = side.exact()
    random = [prompt for prompt in found.prompts if prompt.note != "text"]
    expected = [Expected.of(exact, prompt) for prompt in random[:_EXACTNESS_PROMPTS]]
    found.exactness = check_exactness(exact_package, expected, bound=bound)
    package = load_package(folder, repo, dtype=torch.float32)
    _self_checks(found, side, package, expected[0])
    gate = exactness_gate(EXACTNESS, found.exactness)
    found.decide(gate)
    found.exclusions += [
        Exclusion(cell=f"exactness of {name}", reason="no top-k or sort of the reference chooses by scores like these")
        for name in sorted(found.exactness.unscored)
    ]
    for dtype in options.dtypes:
        name = f"precision {_name(dtype)}"
        if gate.verdict == "holds":
            found.decide(_precision(found, side, name, dtype, folder, repo, random))
        else:
            detail = "not judged: the error of another function than the reference's says nothing about rounding"
            found.decide(Gate(name=name, verdict="inconclusive", detail=detail))
    cached = all(check.holds for check in found.self_checks if check.name == CACHED)
    found.greedy = compare_greedy(
        package,
        side.serving(torch.float32),
        exact,
        _greedy_prompts(found.prompts),
        tokens=options.greedy_tokens,
        cached=cached,
    )
    found.decide(greedy_gate("greedy", found.greedy))


def _greedy_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """All texts, and random prompts, from the one with an end id on, up to three in all."""
    texts = [prompt for prompt in prompts if prompt.note == "text"]
    random = sorted((p for p in prompts if p.note != "text"), key=lambda prompt: not prompt.note)
    return texts + random[: max(1, _GREEDY_PROMPTS - len(texts))]


def _self_checks(found: _Findings, side: _TrainingSide, package: Package, expected: Expected) -> None:
    """The reference against itself on one prompt. `package`, in float32, tells which choices may sit on a tie there."""
    ids = list(expected.prompt.ids)
    exact, serving, notes = side.exact(), side.serving(torch.float32), side.notes

    def tied() -> Tensor:
        runs = capture_package(package, ids), expected.capture, capture_reference(serving, ids)
        return tied_rows(*runs, found.exactness.located, "propagated").shown[None]

    found.self_checks += check_reference(exact, ids, leak=notes.float64_leak, declared=notes.fails)
    found.self_checks += check_reference(serving, ids, truth=expected.capture.logits, tied=tied, declared=notes.fails)
    for check in found.self_checks:
        if not check.holds:
            why = check.declared or check.detail or "the reference disagrees with itself"
            found.exclusions.append(
                Exclusion(cell=f"reference {check.name}, {check.dtype}", reason=why, error=check.error)
            )
    found.decide(self_gate("reference", found.self_checks))


def _precision(
    found: _Findings,
    side: _TrainingSide,
    name: str,
    dtype: torch.dtype,
    folder: Path,
    repo: ModelRepo,
    prompts: Sequence[Prompt],
) -> Gate:
    try:
        serving = side.serving(dtype)
        serving.logits(list(prompts[0].ids))
    except (RuntimeError, ValueError, TypeError) as failure:  # some families do not run in bf16 at all
        reason = f"the reference does not run in {_name(dtype)}: {failure}".splitlines()[0]
        found.exclusions.append(Exclusion(cell=name, reason=reason))
        return Gate(name=name, verdict="inconclusive", detail=reason)
    result = check_precision(
        load_package(folder, repo, dtype=dtype),
        side.truth_of(dtype),
        serving,
        found.exactness.located,
        prompts,
        modes=_PRECISION_MODES.get(dtype, ("isolated",)),
    )
    found.precision.append(result)
    found.warnings += [
        f"{name}: {'layer ' + str(row.layer) + ' ' if row.layer is not None else ''}{row.operator} {row.port}: "
        f"{row.ratio:.2f} times the reference's own error"
        for row in result.rows
        if row.note and row.ratio is not None
    ]
    return precision_gate(name, result)


def _choose_prompts(
    found: _Findings, package: Package, repo: ModelRepo, end_ids: Sequence[int], options: Options
) -> None:
    layout = package.layout()
    limits: dict[str, Any] = dict(max_positions=layout.max_positions, room=options.greedy_tokens)
    found.prompts += text_prompts(repo, **limits)
    found.prompts += given_prompts(repo, options.texts, **limits)
    # Ids past the tokenizer's are padding of the embedding: nobody trained them.
    known = repo.tokenizer.vocab_size if "tokenizer.json" in repo.file_names else layout.vocab_size
    vocab = min(layout.vocab_size, known)
    found.prompts += random_prompts(vocab, end_ids, seed=options.seed, **limits)


def _alignment(found: _Findings, model: str, labels: Iterable[str], produced_by: Provenance) -> Alignment:
    rows = [*found.golden_rows, *found.exactness.rows, *(row for result in found.precision for row in result.rows)]
    return Alignment(
        produced_by=produced_by,
        model=model,
        holds=overall(found.gates),
        gates=tuple(found.gates),
        first_bad=found.exactness.first_bad,
        also_bad=tuple(found.exactness.also_bad),
        self_checks=tuple(found.self_checks),
        exclusions=tuple(found.exclusions),
        rows=tuple(kept_rows(rows)),
        rows_checked=len(rows),
        unstable=tuple(u for result in found.precision for u in result.unstable),
        greedy=tuple(found.greedy),
        invariance=tuple(found.invariance),
        state_checksums=tuple(found.checksums),
        matrix=tuple(found.matrix),
        prompts=tuple(found.prompts),
        conditions=tuple(labels),
        warnings=tuple(found.warnings),
    )


def _recipe_notes(folder: Path, repo: ModelRepo) -> tuple[ReferenceNotes, tuple[int, ...]]:
    """What the package's recipe says of the reference, and the text model's end ids."""
    recipe = load_recipe(str(folder / "recipe.yaml"))
    return recipe.reference, eos_ids(repo.generation_config, repo.config, text_config(recipe, repo.config))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
