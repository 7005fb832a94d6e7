"""day0 status: what stands in a workspace."""

from dataclasses import asdict

from day0.cli.common import Model, WorkspaceOption, command
from day0.cli.output import Output


@command
def status(out: Output, repo: Model = None, workspace: WorkspaceOption = None) -> None:
    """Show a workspace's stages: fresh, stale (and why), missing or invalid

    With REPO, the model is opened too, and a stage is stale when the model has changed.

    Example: day0 status -w demo.day0
    """
    from day0.pipeline import RunOptions, open_line
    from day0.workspace import Workspace

    found = open_line(repo, RunOptions(), workspace).workspace if repo else Workspace.find(workspace)
    rows = [asdict(state) for state in found.states()]
    out.table(rows, title=f"{found.name} ({found.source}) in {found.folder}")
    out.document({"workspace": str(found.folder), "source": found.source, "stages": rows})
    if out.quiet:
        out.value(next((row["stage"] for row in rows if row["state"] != "fresh"), "fresh"))
