"""Exactness for real sizes: one layer of reference and package at a time, each fed the stored output of the one before.

At no time is more in memory than one layer (the reference's, then the package's), with the embedding at the first and
the head at the last, and the activations of the prompts.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from day0.align.capture import Capture, package_layers, recorded_operators
from day0.align.exactness import BOUND, GATE, Judgement
from day0.align.layer_by_layer import empty_operators, fill_operators, hollow_package, reference_layer
from day0.align.training_side import Reference, ReferenceCapture, capture_reference
from day0.artifacts.alignment import FirstBad, Prompt, Row
from day0.artifacts.layout import Layout
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.interface.memory import Memory
from day0.kernels.interface.package import Package
from day0.reference.match import error
from day0.repo.model_repo import ModelRepo


@dataclass
class Streamed:
    rows: list[Row] = field(default_factory=list)
    bad: list[FirstBad] = field(default_factory=list)


@torch.no_grad()
def stream_exactness(
    repo: ModelRepo,
    package_folder: Path,
    prompts: Sequence[Prompt],
    *,
    dtype: torch.dtype = torch.float64,
    bound: float = BOUND,
    layer_numbers: Mapping[str, int] = MappingProxyType({}),
) -> Streamed:
    """Every layer's output and the logits. In a layer that differs, the first operator that does is named.

    Raises Day0Error for a model whose layers cannot stand alone (they take more than hidden states).
    """
    package = hollow_package(package_folder)
    left_out = tuple(package.weight_map()["left_out"])
    build = partial(reference_layer, repo, dtype=dtype, left_out=left_out, layer_numbers=layer_numbers)
    layers = len(package_layers(package))
    result = Streamed()
    filled = fill_operators(package, repo, dtype, layer=None)
    entered = {p.name: _run_package_ends(package, p, dtype)[0] for p in prompts}
    empty_operators(filled)
    stored: dict[str, Tensor] = {}
    for layer in range(layers):
        outer = layer in (0, layers - 1)
        reference = build(layer, outer=outer)
        captures = {p.name: _run_reference(reference, p, stored.get(p.name)) for p in prompts}
        del reference
        filled = fill_operators(package, repo, dtype, layer=layer)
        given = {p.name: _as_package(captures[p.name].layer_inputs[0], entered[p.name]) for p in prompts}
        judged = {p.name: _run_package_layer(package, layer, p, given[p.name]) for p in prompts}
        empty_operators(filled)
        if layer == 0:
            result.rows += [_row(p, 0, "input", entered[p.name], given[p.name], bound) for p in prompts]
        differing = []
        for prompt in prompts:
            computed, exact = judged[prompt.name].layer_outputs[layer], captures[prompt.name].layer_outputs[0]
            row = _row(prompt, layer, "layer", computed, exact, bound)
            result.rows.append(row)
            differing += [prompt] if row.verdict != "holds" else []
            stored[prompt.name] = exact
        if differing:
            prompt = differing[0]
            traced = _run_reference(build(layer, outer=layer == 0), prompt, captures[prompt.name].layer_inputs[0], True)
            filled = fill_operators(package, repo, dtype, layer=layer)
            again = _run_package_layer(package, layer, prompt, given[prompt.name])
            judgement = Judgement(again, traced.index(), bound, traced.scores)
            result.bad += judgement.culprits(judgement.excused_ports(), prompt.name, every_layer=False)
            empty_operators(filled)
    filled = fill_operators(package, repo, dtype, layer=None)
    for prompt in prompts:
        _, logits = _run_package_ends(package, prompt, dtype, _as_package(stored[prompt.name], entered[prompt.name]))
        result.rows.append(_row(prompt, None, "logits", logits, captures[prompt.name].logits, bound))
    empty_operators(filled)
    return result


def _run_reference(
    reference: Reference, prompt: Prompt, stored: Tensor | None, traced: bool = False
) -> ReferenceCapture:
    """The one-layer reference, its layer fed the stored value (the first layer: the embedding's)."""
    return capture_reference(reference, list(prompt.ids), force={} if stored is None else {0: stored}, traced=traced)


def _run_package_layer(package: Package, layer: int, prompt: Prompt, hidden: Tensor) -> Capture:
    """One layer of a package on a value [T, ...], over fresh memory of its own."""
    captured = Capture()
    batch, memory = _fresh(package, prompt, f"layers.{layer}.", hidden.dtype)
    with recorded_operators(package, captured):
        captured.layer_outputs[layer] = package_layers(package)[layer](hidden, batch, memory)
    return captured


def _run_package_ends(
    package: Package, prompt: Prompt, dtype: torch.dtype, last: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What the package's first layer is given [T, ...], and its logits when every layer gives `last`, or its input."""
    entered: list[Tensor] = []

    def passed_on(x: Tensor, *_: Any) -> Tensor:
        entered.append(x)
        return x if last is None else last

    with ExitStack() as changed:
        for layer in package_layers(package):
            layer.forward = passed_on
            changed.callback(vars(layer).pop, "forward")
        logits: Tensor = package(*_fresh(package, prompt, "", dtype))
    return entered[0], logits


def _as_package(hidden: Tensor, entered: Tensor) -> Tensor:
    """What a layer of the reference takes or gives [1, T, ...], laid out as the package's layers have it."""
    return hidden.reshape(entered.shape) if hidden.numel() == entered.numel() else hidden.squeeze(0)


def _fresh(package: Package, prompt: Prompt, prefix: str, dtype: torch.dtype) -> tuple[Batch, Memory]:
    whole = package.layout()
    layout = Layout(
        components=tuple(c for c in whole.components if prefix and c.name.startswith(prefix)),
        vocab_size=whole.vocab_size,
        max_positions=whole.max_positions,
    )
    pages = -(-len(prompt.ids) // PAGE_TOKENS)
    memory = Memory.allocate(layout, pages=pages, slots=1, dtype=dtype, poison=True)
    order = list(reversed(range(pages)))
    return Batch.pack([list(prompt.ids)], context_lens=[0], slots=[0], pages=[order]), memory


def _row(prompt: Prompt, layer: int | None, name: str, computed: Tensor, exact: Tensor, bound: float) -> Row:
    wrong = error(computed.reshape(-1), exact.reshape(-1)) if computed.numel() == exact.numel() else float("inf")
    return Row(
        gate=GATE,
        prompt=prompt.name,
        mode="isolated",
        layer=layer,
        operator=name,
        kind="",
        port="",
        error=wrong,
        bound=bound,
        verdict="holds" if wrong <= bound else "does not hold",
    )
