"""Lines: a model, by folder, hub id or workspace, in its workspace."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from day0.artifacts.inventory import Inventory
from day0.demo import model_path
from day0.pipeline.line import Line
from day0.pipeline.options import RunOptions
from day0.repo import ModelRepo
from day0.workspace import ModelChanged, Workspace

DEMO = "demo"


def open_model(source: str, *, revision: str | None = None) -> ModelRepo:
    """A repo by folder, hub id, or the reserved name `demo`. Raises Day0Error."""
    if source == DEMO:
        repo = ModelRepo.open(model_path())
        repo.name = DEMO
        return repo
    return ModelRepo.open(source, revision=revision)


def open_line(source: str | None, options: RunOptions, folder: Path | None = None) -> Line:
    """The line of a model, or, without one, of the workspace in `folder` or of the only one here.

    Raises Day0Error: no such model or workspace, or a workspace of another model, or of other files of it.
    """
    line, changed = look_at_line(source, options, folder)
    if changed is not None:
        raise changed
    return line


def look_at_line(
    source: str | None, options: RunOptions, folder: Path | None = None
) -> tuple[Line, ModelChanged | None]:
    """As `open_line`, only to look: a workspace of other files of the model is no error; the second value says so."""
    if source is None:
        found = Workspace.find(folder)
        source, folder = found.source, found.folder
        options = replace(options, revision=options.revision or found.revision)
    repo = open_model(source, revision=options.revision)
    recorded = DEMO if source == DEMO else repo.location
    try:
        workspace = Workspace.of_model(
            repo.name, recorded, repo.hash, folder, revision=repo.revision, model_files=repo.file_hashes
        )
    except ModelChanged as changed:
        return Line(repo, changed.workspace, options), changed
    return Line(repo, workspace, options), None


def inventory_changes(line: Line, other: str) -> list[dict[str, Any]]:
    """What differs from the workspace's inventory in `other`: another repo, or `@REV`, a revision of the same hub id.

    The other model is taken apart in memory. Raises Day0Error as opening and decomposing it do.
    """
    from day0.decompose import diff

    revision = other[1:] if other.startswith("@") else None
    options = replace(line.options, revision=revision)
    repo = open_model(line.workspace.source if revision else other, revision=revision)
    changes = diff(Inventory.read(line.workspace.folder), Line(repo, line.workspace, options).inventory())
    return [change.model_dump(mode="json") for change in changes]
