"""The stage: recipe + config + plan -> the package folder."""

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from day0 import __version__
from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Inventory
from day0.artifacts.plan import NOTHING, Plan
from day0.errors import Day0Error
from day0.generate.folder import write_package
from day0.generate.render import environment, render_model
from day0.generate.weight_file import dump_weight_file
from day0.language.program import Program, apply_recipe
from day0.language.recipe import Recipe, load_recipe, recipe_hash, write_recipe
from day0.repo import ModelRepo

PACKAGE = "package"


@dataclass(frozen=True)
class Options:
    """`layers` keeps the first layers only; `dummy_weights`: random, not read; `force`: over a user's edits."""

    layers: int | None = None
    dummy_weights: bool = False
    force: bool = False


@dataclass(frozen=True)
class Generated:
    """What was written, and the labels every number made with it must carry."""

    folder: Path
    files: tuple[str, ...]
    labels: tuple[str, ...]


def run(
    repo: ModelRepo, inventory: Inventory, plan: Plan, workspace: Path, options: Options, produced_by: Provenance
) -> Generated:
    """Write `workspace/package`; `produced_by` goes into its manifest.

    Raises Day0Error: no recipe, or another than the inventory's; an operator that nothing computes; a tensor missing,
    unclaimed or mis-shaped; more layers than there are; a user's edit in the way.
    """
    at = f"-w {shlex.quote(str(workspace))}"
    recipe = _recipe(inventory, at)
    _refuse_unknown_operators(inventory, plan, at)
    _refuse_broken_weights(inventory, options)
    whole = apply_recipe(recipe, repo.config, repo.tensors)
    program = _first_layers(whole, inventory.model, recipe, repo, options.layers)
    recipe_text = write_recipe(recipe)
    config_text = json.dumps(repo.config, indent=1, sort_keys=True) + "\n"
    labels = _labels(options, len(program.layers), len(whole.layers), inventory)
    title = f"{inventory.model}: {len(program.layers)} layers"
    contents = {
        "model.py": render_model(
            program, title=title, recipe_hash=_sha256(recipe_text), config_hash=_sha256(config_text)
        ),
        "weights.json": dump_weight_file(program),
        "plan.yaml": plan.dump(),
        "config.json": config_text,
        "recipe.yaml": recipe_text,
        "README.md": environment()
        .get_template("README.md.j2")
        .render(title=title, inventory=inventory, plan=plan, labels=labels, opened=_opened(repo), version=__version__),
    }
    facts = {
        "model": inventory.model,
        "source": repo.location,
        "model_hash": repo.hash,
        "recipe": recipe.recipe,
        "layers": len(program.layers),
        "whole": len(program.layers) == len(whole.layers),
        "dummy_weights": options.dummy_weights,
        "labels": list(labels),
        "produced_by": produced_by.model_dump(mode="json"),
    }
    folder = workspace / PACKAGE
    write_package(folder, contents, facts, force=options.force)
    return Generated(folder, tuple(contents), labels)


def _first_layers(whole: Program, model: str, recipe: Recipe, repo: ModelRepo, layers: int | None) -> Program:
    """The program of the first `layers`; the whole one for None. Raises Day0Error where the model has fewer."""
    if layers is None:
        return whole
    if layers > len(whole.layers):
        raise Day0Error(f"{model} has {len(whole.layers)} layers, not {layers}", hint="lower --layers, or leave it out")
    return apply_recipe(recipe, repo.config, repo.tensors, layers=layers)


def _recipe(inventory: Inventory, at: str) -> Recipe:
    """The recipe that the inventory was made with. `at`: the workspace, as options of a command.

    Raises Day0Error when there is none, or it changed since.
    """
    flags = inventory.produced_by.flags
    name = flags.get("recipe") or inventory.recipe
    if not name:
        raise Day0Error(
            f"no recipe covers {inventory.model}",
            hint=f"write one (docs/adding-a-family.md), then `day0 decompose {at} --recipe FILE`",
        )
    recipe = load_recipe(str(name))
    recorded = flags.get("recipe_hash")
    if recorded is not None and recorded != recipe_hash(recipe):
        raise Day0Error(f"recipe {name} changed since the inventory was made", hint=f"run `day0 decompose {at}` again")
    return recipe


def _refuse_unknown_operators(inventory: Inventory, plan: Plan, at: str) -> None:
    unknown = list(dict.fromkeys(line.operator for line in plan.lines if line.implementation == NOTHING))
    if unknown:
        more = f" and {len(unknown) - 6} more" if len(unknown) > 6 else ""
        raise Day0Error(
            f"nothing computes {', '.join(unknown[:6])}{more} of {inventory.model}: tier {plan.tier} cannot be run yet",
            hint=f"write the kind (docs/adding-a-kind.md), then `day0 map {at}` again",
        )


def _opened(repo: ModelRepo) -> str:
    """Arguments that open the repo from any folder, as Python source."""
    revision = "" if repo.revision is None else f", revision={repo.revision!r}"
    return f"{repo.location!r}{revision}"


def _refuse_broken_weights(inventory: Inventory, options: Options) -> None:
    audit = inventory.tensor_audit
    if options.dummy_weights or not audit.claimed + len(audit.missing):
        return
    anew = "get the checkpoint anew where it is damaged, then day0 decompose again; or correct the recipe's weights"
    for words, names, hint in (
        ("the checkpoint lacks", audit.missing, anew),
        ("mis-shaped:", audit.shape_mismatch, anew),
        (
            "no operator claims",
            audit.unclaimed if options.layers is None else (),
            "claim them in the recipe's weights, or leave them out there with the reason",
        ),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise Day0Error(f"{words} {', '.join(names[:3])}{more}", hint=hint)


def _labels(options: Options, layers: int, whole: int, inventory: Inventory) -> tuple[str, ...]:
    labels = []
    if options.dummy_weights:
        labels.append("random weights")
    if layers < whole:
        labels.append(f"{layers} of {whole} layers")
    contradicted = [operator.name for operator in inventory.operators if operator.evidence.contradiction]
    contradicted += [f"config key {key.key}" for key in inventory.config_audit if key.audit == "contradicted"]
    if contradicted:
        labels.append(f"a recipe that the reference contradicts: {', '.join(contradicted)}")
    return tuple(labels)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
