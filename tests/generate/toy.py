"""A toy family of plain kinds: recipe, checkpoint, inventory and plan, small enough to check by hand."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Inventory, Reference, TensorAudit
from day0.artifacts.plan import MemoryForecast, Plan
from day0.language.recipe import load_recipe, recipe_hash

WIDTH, VOCAB, LAYERS = 8, 32, 3
RECIPE = """
recipe: toy
match: {model_types: [toy]}
limits: {vocab_size: $config.vocab, positions: 200}
model:
  doc: a toy
  takes: [token_ids]
  steps: [h = embed(token_ids), h = layers(h), logits = head(h)]
  gives: [logits]
schedule:
  layers: $len(config.kinds)
  layer: layer
  slots:
    branch: {select: "$config.kinds[layer]", cases: {wide: wide, conv: mixing, none: skip}}
blocks:
  layer: {takes: [h], steps: [x = norm(h), y = branch(x), "h = add(h, y)"], gives: [h]}
  wide: {doc: two products, takes: [x], steps: [x = up(x), y = down(x)], gives: [y]}
operators:
  embed: {kind: embedding, vocab_size: $config.vocab, width: $config.width, from: /embed}
  head: {kind: linear, in_features: $config.width, out_features: $config.vocab, from: /head}
  norm: {kind: norm, dim: $config.width, eps: "$config.eps[layer]", from: norm}
  up: {kind: linear, in_features: $config.width, out_features: $2 * config.width, from: up}
  down: {kind: linear, in_features: $2 * config.width, out_features: $config.width, from: down}
  mixing: {kind: causal_conv, channels: $config.width, kernel_size: 3, activation: silu, from: conv}
  add: {kind: residual_mix, scheme: add, width: $config.width}
weights: {float32: [norm.weight]}
left_out: [{pattern: "vision.*", reason: no eyes}]
"""
CONFIG = {
    "model_type": "toy",
    "width": WIDTH,
    "vocab": VOCAB,
    "kinds": ["wide", "conv", "none"],
    "eps": [1e-5, 1e-6, 1e-6],
}


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "embed.weight": (VOCAB, WIDTH),
        "head.weight": (VOCAB, WIDTH),
        **{f"model.layers.{i}.norm.weight": (WIDTH,) for i in range(LAYERS)},
        "model.layers.0.up.weight": (2 * WIDTH, WIDTH),
        "model.layers.0.down.weight": (WIDTH, 2 * WIDTH),
        "model.layers.1.conv.weight": (WIDTH, 3),
        "vision.patch": (2, 2),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_repo(folder: Path, **changed: torch.Tensor | None) -> Path:
    """A toy repo; `changed` replaces or (None) removes tensors by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    stored: dict[str, Any] = {**tensors(), **changed}
    save_file({n: t.contiguous() for n, t in stored.items() if t is not None}, folder / "model.safetensors")
    return folder


def write_recipe_file(folder: Path) -> Path:
    path = folder / "toy.yaml"
    path.write_text(RECIPE)
    return path


def expected(token_ids: list[int], owned: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the toy computes, written out. All in the tensors' dtype; logits [T, VOCAB]."""
    h = owned["embed.weight"][token_ids]
    for layer, eps in enumerate(CONFIG["eps"]):
        x = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * owned[f"model.layers.{layer}.norm.weight"]
        if layer == 0:
            y = x @ owned["model.layers.0.up.weight"].T @ owned["model.layers.0.down.weight"].T
        elif layer == 1:
            padded = torch.cat([x.new_zeros(2, WIDTH), x])
            taps = owned["model.layers.1.conv.weight"]
            y = torch.nn.functional.silu(sum(padded[j : j + len(x)] * taps[:, j] for j in range(3)))
        else:
            y = x
        h = h + y
    return h @ owned["head.weight"].T


def inventory(recipe: Path | None = None, **audit: Any) -> Inventory:
    """An inventory made with the recipe file `recipe`."""
    made_with = {"recipe": str(recipe), "recipe_hash": recipe_hash(load_recipe(str(recipe)))} if recipe else {}
    return Inventory(
        produced_by=Provenance(day0_version="0", model_hash="0", flags=made_with),
        model="toy",
        source="toy",
        model_hash="0",
        recipe="toy",
        reference=Reference(kind="none"),
        config=CONFIG,
        layers=LAYERS,
        schedule=("wide", "mixing", "layer"),
        parameters=1,
        weights_dtype="float32",
        operators=(),
        tensor_audit=TensorAudit(**{"claimed": 8, **audit}),
    )


def plan(lines: tuple[Any, ...] = ()) -> Plan:
    memory = MemoryForecast(
        device_bytes=1,
        weights_bytes=1,
        kv_bytes_per_token=0.0,
        state_bytes_per_sequence=0,
        workspace_bytes=0,
        fits=True,
        longest_context=1,
        sequences_at={},
        formula="-",
    )
    return Plan(
        produced_by=Provenance(day0_version="0", model_hash="0"),
        model="toy",
        device={"name": "cpu"},
        tier="A",
        tier_reason="all operators are known",
        dtype="float32",
        lines=lines,
        memory=memory,
    )
