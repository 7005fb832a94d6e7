"""Compare a package with outputs recorded on the training side (`day0/align/record.py` has the format)."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from day0.align.capture import Capture, capture_package
from day0.align.greedy import Judged, greedy_cell, is_tie, partings
from day0.align.precision import ulp_floor
from day0.align.ties import LIMIT
from day0.artifacts.alignment import GreedyCell, Mode, Prompt, Row
from day0.errors import Day0Error
from day0.kernels.interface.package import Package
from day0.reference.match import error

GATE = "golden"
FORMAT = "day0-golden-1"
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class GoldenPrompt:
    ids: list[int]
    layer_inputs: dict[int, Tensor]  # [1, T, ...]
    layer_outputs: dict[int, Tensor]  # [1, T, ...]
    logits: Tensor  # [T, vocab]
    new_ids: list[int]
    new_margins: list[float]


@dataclass(frozen=True)
class Golden:
    """A recording. `dtype`: what the training side computed in."""

    model: str
    dtype: torch.dtype
    layers: int
    prompts: list[GoldenPrompt]


@dataclass
class GoldenResult:
    rows: list[Row] = field(default_factory=list)
    greedy: list[GreedyCell] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)


def read_golden(path: Path) -> Golden:
    """Raises Day0Error: no such file, not safetensors, another format, a tensor missing or of the wrong length, or
    metadata that are no counts.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except FileNotFoundError:
        raise Day0Error(f"{path} does not exist", hint="record it on the training side: day0 record") from None
    except (SafetensorError, OSError) as failure:
        raise Day0Error(
            f"{path} is no safetensors file: {failure}", hint="record it again with day0 record"
        ) from failure
    if facts.get("format") != FORMAT or facts.get("dtype") not in DTYPES:
        raise Day0Error(
            f"{path} has format {facts.get('format')} in {facts.get('dtype')}, not {FORMAT}",
            hint="record it with the script that day0 record prints",
        )
    try:
        layers, count = int(facts["layers"]), int(facts["prompts"])
        prompts = [_prompt(tensors, number, layers) for number in range(count)]
    except KeyError as failure:
        raise Day0Error(f"{path} lacks {failure.args[0]}", hint="record it again with day0 record") from failure
    except ValueError as failure:
        raise Day0Error(
            f"{path} counts {facts['layers']!r} layers and {facts['prompts']!r} prompts",
            hint="record it again with day0 record",
        ) from failure
    return Golden(facts.get("model", ""), DTYPES[facts["dtype"]], layers, prompts)


def compare_golden(exact: Package, serving: Package, golden: Golden, *, bound: float) -> GoldenResult:
    """Layers on the recorded layer inputs, layers and logits on the package's own, and the greedy continuation.

    `exact` is the package in float64. A float64 recording is held to `bound`. Any other is held to twice the error of
    `serving`, the package in the recording's dtype, against `exact`: the rounding that the arithmetic costs.
    """
    result = GoldenResult()
    for number, prompt in enumerate(golden.prompts):
        name = f"golden {number}"
        result.prompts.append(Prompt(name=name, ids=tuple(prompt.ids), note="recorded"))
        modes: tuple[Mode, Mode] = ("isolated", "propagated")
        for mode in modes:
            force = prompt.layer_inputs if mode == "isolated" else {}
            ours = capture_package(exact, prompt.ids, force=force)
            if len(ours.layer_outputs) != golden.layers:
                raise Day0Error(
                    f"the recording has {golden.layers} layers, the package {len(ours.layer_outputs)}",
                    hint="record the model that the package was generated for",
                )
            budget = capture_package(serving, prompt.ids, force=force) if golden.dtype != torch.float64 else None
            result.rows += _rows(ours, budget, prompt, golden.dtype, name, mode, bound)
        if prompt.new_ids:
            result.greedy.append(_greedy(serving, ours, prompt, name))
    return result


def _prompt(tensors: dict[str, Tensor], number: int, layers: int) -> GoldenPrompt:
    for name, axes in (("input_ids", 1), ("logits", 2), ("new_ids", 1), ("new_margins", 1)):
        if tensors[f"{number}.{name}"].ndim != axes:
            raise Day0Error(
                f"recorded {number}.{name} has {tensors[f'{number}.{name}'].ndim} axes, not {axes}",
                hint="record it again with day0 record",
            )
    ids = tensors[f"{number}.input_ids"].tolist()
    found = GoldenPrompt(
        ids,
        {i: tensors[f"{number}.layer.{i}.input"] for i in range(layers)},
        {i: tensors[f"{number}.layer.{i}.output"] for i in range(layers)},
        tensors[f"{number}.logits"],
        tensors[f"{number}.new_ids"].tolist(),
        tensors[f"{number}.new_margins"].tolist(),
    )
    if len(found.logits) != len(ids):
        raise Day0Error(
            f"recorded prompt {number} has {len(ids)} tokens and {len(found.logits)} rows of logits",
            hint="record without padding, one prompt at a time",
        )
    return found


def _rows(
    ours: Capture,
    budget: Capture | None,
    prompt: GoldenPrompt,
    dtype: torch.dtype,
    name: str,
    mode: Mode,
    bound: float,
) -> list[Row]:
    entries: list[tuple[int | None, str, Tensor, Tensor, Tensor | None]] = [
        (i, "layer", out, prompt.layer_outputs[i], budget.layer_outputs[i] if budget else None)
        for i, out in ours.layer_outputs.items()
    ]
    if mode == "propagated":  # with the layers forced, the logits are the last layer's
        entries.append((None, "logits", ours.logits, prompt.logits, budget.logits if budget else None))
    rows = []
    for layer, operator, exact, recorded, own in entries:
        if recorded.numel() != exact.numel():
            raise Day0Error(
                f"recorded {operator} {layer if layer is not None else ''} has shape {list(recorded.shape)}, "
                f"the package's {list(exact.shape)}",
                hint="record the model that the package was generated for",
            )
        wrong = error(recorded.reshape(-1), exact.reshape(-1))
        limit, ratio = bound, None
        if own is not None:
            usual = max(error(own.reshape(-1), exact.reshape(-1)), ulp_floor(dtype, exact.shape[-1]))
            limit, ratio = LIMIT * usual, wrong / usual
        rows.append(
            Row(
                gate=GATE,
                prompt=name,
                mode=mode,
                layer=layer,
                operator=operator,
                kind="",
                port="",
                error=wrong,
                bound=limit,
                ratio=ratio,
                verdict="holds" if wrong <= limit else "does not hold",
            )
        )
    return rows


def _greedy(serving: Package, ours: Capture, prompt: GoldenPrompt, name: str) -> GreedyCell:
    # How far the recorded logits are from float64: both sides may be off by twice that.
    noise = float((prompt.logits.double() - ours.logits.double()).abs().max())
    parted = []
    for part in partings(serving, prompt.ids, prompt.new_ids):
        margins = prompt.new_margins[part.index], part.margin
        tie = is_tie(margins, max(margins), noise)
        parted.append(Judged(part, prompt.new_ids[part.index], margins[0], noise, tie))
        if not tie:
            break
    return greedy_cell(name, len(prompt.new_ids), parted)
