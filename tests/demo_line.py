"""The demo's line with a package."""

from pathlib import Path

from day0.pipeline import Line, RunOptions, open_line
from tests.mapping.inventories import inventory_of_config


def demo_line(folder: Path) -> Line:
    """Mapped and generated in the workspace `folder`, its inventory declared so that no reference has to run."""
    made = open_line("demo", RunOptions(), folder)
    made.workspace.claim()
    held = inventory_of_config(made.repo.config, recipe=made.repo.config["model_type"])
    held.model_copy(update={"produced_by": made.expected("decompose"), "model": "demo"}).write(made.workspace.folder)
    made.run_one("map")
    made.run_one("generate")
    return made
