"""day0 generate: the model package."""

from typing import Annotated

import typer

from day0.cli.common import Model, WorkspaceOption, command, warn_before
from day0.cli.output import Output


@command
def generate(
    out: Output,
    repo: Model = None,
    workspace: WorkspaceOption = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Only the first layers; every figure says so")] = None,
    dummy_weights: Annotated[bool, typer.Option(help="Random weights; every figure says so")] = False,
    force: Annotated[bool, typer.Option(help="Overwrite files that were edited")] = False,
) -> None:
    """Write the model as a readable PyTorch package that calls the kernel library

    Files that were edited since are never overwritten without --force.

    Example: day0 generate demo
    """
    from day0.pipeline import RunOptions, open_line

    options = RunOptions(layers=layers, dummy_weights=dummy_weights, force=force)
    line = open_line(repo, options, workspace)
    warn_before(out, line, "generate")
    line.run_one("generate")
    package = line.package()
    out.table([{"file": name, "lines": count} for name, count in package.files.items()], title=str(package.folder))
    for label in package.labels:
        out.warn(f"this package has {label}")
    out.document({"folder": str(package.folder), "files": list(package.files), "labels": list(package.labels)})
    if out.quiet:
        out.value(str(package.folder))
