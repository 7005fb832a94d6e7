"""Packages for the tests, written from a recipe alone: what align reads of a package, without inventory and plan."""

import json
from pathlib import Path

import torch

from day0.artifacts.base import Provenance
from day0.artifacts.plan import MemoryForecast, Plan
from day0.engine.package import load_package
from day0.generate.folder import write_package
from day0.generate.render import render_model
from day0.generate.weight_file import dump_weight_file
from day0.kernels.interface.package import Package
from day0.language.program import Program, apply_recipe
from day0.language.recipe import Recipe, find_recipe, write_recipe
from day0.repo.model_repo import ModelRepo


def recipe_of(repo: ModelRepo) -> Recipe:
    recipe = find_recipe(repo.config)
    assert recipe is not None, f"no recipe for {repo.config.get('model_type')}"
    return recipe


def write_program(program: Program, repo: ModelRepo, folder: Path) -> Path:
    """A package folder in which every operator runs its plain reference."""
    contents = {
        "model.py": render_model(program, title=repo.name, recipe_hash="", config_hash=""),
        "weights.json": dump_weight_file(program),
        "plan.yaml": _plan(repo).dump(),
        "config.json": json.dumps(repo.config),
        "recipe.yaml": write_recipe(program.recipe),
    }
    facts = dict(
        model=repo.name,
        source=repo.source,
        model_hash=repo.hash,
        recipe=program.recipe.recipe,
        layers=len(program.layers),
        whole=True,
        dummy_weights=False,
        labels=[],
        produced_by=Provenance(day0_version="0", model_hash=repo.hash).model_dump(),
    )
    write_package(folder, contents, facts, force=True)
    return folder


def _plan(repo: ModelRepo) -> Plan:
    """A plan that chooses nothing: every operator keeps its plain reference."""
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
        produced_by=Provenance(day0_version="0", model_hash=repo.hash),
        model=repo.name,
        device={"name": "cpu"},
        tier="A",
        tier_reason="-",
        dtype="float32",
        lines=(),
        memory=memory,
    )


def package_of(repo: ModelRepo, folder: Path, *, dtype: torch.dtype = torch.float64) -> Package:
    program = apply_recipe(recipe_of(repo), repo.config, repo.tensors)
    return load_package(write_program(program, repo, folder), repo, dtype=dtype)
