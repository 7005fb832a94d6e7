"""day0 status: what stands in a workspace."""

from dataclasses import asdict

from day0.cli.common import Model, WorkspaceOption, command
from day0.cli.output import Output


@command
def status(out: Output, repo: Model = None, workspace: WorkspaceOption = None) -> None:
    """Show a workspace's stages: fresh, stale (and why), missing or invalid; and which files were edited

    Stages are held to the options they were run with, and to the model and its reference as they are now.

    Example: day0 status -w demo.day0
    """
    from day0.errors import Day0Error
    from day0.pipeline import RunOptions, look_at_line
    from day0.workspace import Workspace

    try:
        line, changed = look_at_line(repo, RunOptions(), workspace)
        found, states = line.workspace, line.states_as_run()
        if changed is not None:
            out.warn(f"{changed.message}; {changed.hint}")
    except Day0Error as error:
        if repo is not None:
            raise
        found = Workspace.find(workspace)
        states = found.states()
        out.warn(f"the model was not looked at: {error.message}")
    rows = [asdict(state) for state in states]
    out.table(rows, title=f"{found.name} ({found.source}) in {found.folder}")
    edited = found.edited_files()
    if edited:
        out.line(f"edited since it was generated: {', '.join(edited)} (only generate --force overwrites an edit)")
    out.document({"workspace": str(found.folder), "source": found.source, "stages": rows, "edited": edited})
    if out.quiet:
        out.value(next((row["stage"] for row in rows if row["state"] != "fresh"), "fresh"))
