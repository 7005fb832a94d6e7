"""Serving the package of a line. Imports torch: not in this package's `__init__`."""

from dataclasses import replace
from pathlib import Path

import torch

from day0.artifacts.chat import Chat
from day0.artifacts.plan import Plan
from day0.language.recipe import load_recipe
from day0.pipeline.line import Line, refuse_without_weights
from day0.pipeline.options import DType
from day0.serve.load import Loaded, MemorySize, load_served


def load_package_to_serve(line: Line, *, name: str, dtype: DType | None, size: MemorySize, device: str) -> Loaded:
    """The package with its weights in an engine of its own; dtype None is the plan's. Raises Day0Error: no package, no
    weights, a device that is not here, no room in its memory."""
    package = line.package()
    refuse_without_weights(line.repo, package.folder, "serve")
    chosen: torch.dtype = getattr(torch, dtype or Plan.read(package.folder).dtype)
    made = load_served(
        package.folder, line.repo, name=name, dtype=chosen, size=size, device=device, chat=chat_of(package.folder)
    )
    return replace(made, labels=(*package.labels, *made.labels))


def chat_of(package: Path) -> Chat:
    """How a package's family writes answers, by the recipe that it was generated from."""
    recipe = package / "recipe.yaml"
    return load_recipe(str(recipe)).chat if recipe.is_file() else Chat()
