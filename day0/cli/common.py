"""What every command shares: its common flags, and the workspace option."""

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from day0.cli.output import Output
from day0.errors import Day0Error

if TYPE_CHECKING:
    from day0.pipeline import Line
    from day0.workspace import Stage

WorkspaceOption = Annotated[
    Path | None,
    typer.Option("--workspace", "-w", metavar="DIR", help="Workspace folder (default: ./<model>.day0)"),
]
Model = Annotated[str | None, typer.Argument(metavar="[REPO]", help="Folder, hub id or `demo`; default: the workspace")]
Revision = Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit of a hub id")]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="NAME", help="Target: a device of the catalogue, or a YAML file")
]

_COMMON: dict[str, Any] = {
    "as_json": Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Print only what was asked for")],
    "verbose": Annotated[bool, typer.Option("--verbose", "-v", help="Say more")],
    "debug": Annotated[bool, typer.Option("--debug", help="Show a traceback on errors")],
}

TRUST = "--trust-remote-code"
Trust = Annotated[
    str | None,
    typer.Option(
        TRUST,
        metavar="[=unsandboxed]",
        help="Let the repo's own code run, in a sandbox; where there is none, only with =unsandboxed",
    ),
]

# Set when --debug stands on the command line, so that errors in reading that line show a traceback too.
debugging = False


def expand_trust(arguments: list[str]) -> list[str]:
    """`--trust-remote-code` alone means sandboxed: typer has no options whose value may be left out."""
    return [f"{TRUST}=sandboxed" if argument == TRUST else argument for argument in arguments]


def check_trust(value: str | None) -> Any:
    """The value of --trust-remote-code. Raises typer.BadParameter on any but the two there are."""
    if value not in (None, "sandboxed", "unsandboxed"):
        raise typer.BadParameter(f"{TRUST}={value}: only =unsandboxed may follow")
    return value


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common flags: its parameter `out` becomes an Output made from them."""

    @functools.wraps(function)
    def wrapper(*, as_json: bool, quiet: bool, verbose: bool, debug: bool, **arguments: Any) -> None:
        _check_current_folder()
        out = Output(as_json=as_json, quiet=quiet, verbose=verbose)
        # What a package or a repo's code prints is talk: stdout is for the answer, which `out` already holds.
        with contextlib.redirect_stdout(sys.stderr):
            function(out=out, **arguments)

    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.name != "out"]
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in _COMMON.items()
    ]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    wrapper.__signature__ = signature.replace(parameters=[*named, *flags])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in [*named, *flags]}
    return wrapper


def _check_current_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise Day0Error("the current folder is no longer there", hint="cd to another folder") from None


def check_output(path: Path | None) -> None:
    """Raise Day0Error where a file that the user named cannot be written: before the work, not after it."""
    if path is None:
        return
    if path.is_dir():
        raise Day0Error(f"cannot write {path}: it is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise Day0Error(f"cannot write {path}: {path.parent} is no folder", hint="make the folder first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Day0Error(f"cannot write {path}: no permission", hint="choose another place, or change the permissions")


def warn_before(out: Output, line: "Line", stage: "Stage | None") -> None:
    """Warn of what a stage that runs by itself builds on: stages out of date. None: the package itself runs.

    Raises Day0Error where a stage before it never ran.
    """
    for warning in line.before(stage):
        out.warn(warning)


def name_kept_recipe(out: Output, line: "Line") -> None:
    """Say that a recipe is taken which this command line does not name."""
    if line.kept_recipe is not None:
        out.note(f"recipe: {line.kept_recipe}, which {line.workspace.folder} was made with")


def gate(holds: str) -> None:
    """End the command with the exit code of a verdict: 0 holds, 1 does not hold, 3 inconclusive."""
    code = {"holds": 0, "does not hold": 1, "inconclusive": 3}[holds]
    if code:
        raise typer.Exit(code)
