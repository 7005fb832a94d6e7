"""Exactness for real sizes: one layer of reference and package at a time, each fed the stored output of the one before.

At no time is more in memory than one layer (the reference's, then the package's), with the embedding at the first and
the head at the last, and the activations of the prompts.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

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
) -> Streamed:
    """Every layer's output and the logits. In a layer that differs, the first operator that does is named.

    Raises Day0Error for a model whose layers cannot stand alone (they take more than hidden states).
    """
    package = hollow_package(package_folder)
    left_out = tuple(package.weight_map()["left_out"])
    layers = len(package_layers(package))
    result = Streamed()
    stored: dict[str, Tensor] = {}
    for layer in range(layers):
        outer = layer in (0, layers - 1)
        reference = reference_layer(repo, layer, dtype=dtype, outer=outer, left_out=left_out)
        captures = {p.name: _run_reference(reference, p, stored.get(p.name)) for p in prompts}
        del reference
        filled = fill_operators(package, repo, dtype, layer=layer)
        judged = {p.name: _run_package_layer(package, layer, p, captures[p.name].layer_inputs[0]) for p in prompts}
        empty_operators(filled)
        differing = []
        for prompt in prompts:
            computed, exact = judged[prompt.name].layer_outputs[layer], captures[prompt.name].layer_outputs[0]
            row = _row(prompt, layer, "layer", computed, exact, bound)
            result.rows.append(row)
            differing += [prompt] if row.verdict != "holds" else []
            stored[prompt.name] = exact
        if differing:
            result.bad += _name(repo, package, layer, differing[0], captures, dtype, left_out, bound)
    filled = fill_operators(package, repo, dtype, layer=None)
    for prompt in prompts:
        logits = _run_package_ends(package, prompt, stored[prompt.name])
        result.rows.append(_row(prompt, None, "logits", logits, captures[prompt.name].logits, bound))
    empty_operators(filled)
    return result


def _run_reference(
    reference: Reference, prompt: Prompt, stored: Tensor | None, *, traced: bool = False
) -> ReferenceCapture:
    """The one-layer reference, its layer fed the stored value (the first layer: the embedding's)."""
    return capture_reference(reference, list(prompt.ids), force={} if stored is None else {0: stored}, traced=traced)


def _run_package_layer(package: Package, layer: int, prompt: Prompt, hidden: Tensor) -> Capture:
    """One layer of a package on a value [1, T, ...], over fresh memory of its own."""
    captured = Capture()
    batch, memory = _fresh(package, prompt, f"layers.{layer}.", hidden.dtype)
    with recorded_operators(package, captured):
        captured.layer_outputs[layer] = package_layers(package)[layer](hidden.squeeze(0), batch, memory)
    return captured


def _run_package_ends(package: Package, prompt: Prompt, hidden: Tensor) -> Tensor:
    """The package's logits from the last layer's stored output: its layers give that, whatever they are given."""
    with ExitStack() as hooks:
        for layer in package_layers(package):
            hooks.callback(layer.register_forward_hook(lambda *_: hidden.squeeze(0)).remove)
            layer.forward = lambda x, *_: x
            hooks.callback(vars(layer).pop, "forward")
        batch, memory = _fresh(package, prompt, "", hidden.dtype)
        logits: Tensor = package(batch, memory)
    return logits


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


def _name(
    repo: ModelRepo,
    package: Package,
    layer: int,
    prompt: Prompt,
    captures: dict[str, ReferenceCapture],
    dtype: torch.dtype,
    left_out: tuple[str, ...],
    bound: float,
) -> list[FirstBad]:
    """Which operator of a differing layer is wrong: the layer once more, traced."""
    outer = layer == 0
    reference = reference_layer(repo, layer, dtype=dtype, outer=outer, left_out=left_out)
    entered = captures[prompt.name].layer_inputs[0]
    traced = _run_reference(reference, prompt, entered, traced=True)
    del reference
    filled = fill_operators(package, repo, dtype, layer=layer)
    judgement = Judgement(_run_package_layer(package, layer, prompt, entered), traced.index(), bound, traced.scores)
    culprits = judgement.culprits(judgement.excused_ports(), prompt.name, every_layer=False)
    empty_operators(filled)
    return culprits


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
