"""The command line as scripts may rely on it: every command with its arguments and flags."""

import typer

from day0.cli.app import app

COMMON = ["--json", "--quiet -q", "--verbose -v", "--debug"]
WORKSPACE = ["--workspace -w"]

SURFACE = {
    "day0": ["--version"],
    "day0 run": [
        "REPO?", *WORKSPACE, "--from", "--dry-run", "--device", "--recipe", "--trust-remote-code", "--require",
        "--trust-recipe", "--layers", "--dummy-weights", "--force", "--revision", *COMMON,
    ],
    "day0 decompose": [
        "REPO?", *WORKSPACE, "--recipe", "--trust-remote-code", "--require", "--trust-recipe", "--diff", "--revision",
        *COMMON,
    ],
    "day0 map": ["REPO?", *WORKSPACE, "--device", "--dtype", *COMMON],
    "day0 generate": ["REPO?", *WORKSPACE, "--layers", "--dummy-weights", "--force", *COMMON],
    "day0 align": [
        "REPO?", *WORKSPACE, "--trust-remote-code", "--text", "--greedy-tokens", "--seed", "--golden",
        "--stream", "--matrix", *COMMON,
    ],
    "day0 sample": [
        "REPO?", *WORKSPACE, "--prompt", "--prompt-ids", "--prompts", "--max-tokens", "--max-running",
        "--dtype", *COMMON,
    ],
    "day0 serve": [
        "REPO?", *WORKSPACE, "--host", "--port", "--name", "--api-key-file", "--dtype", "--run-on", "--max-running",
        "--max-waiting", "--memory-tokens", "--checkpoints", "--draft-tokens", "--memory-mib", "--max-prompt-tokens",
        "--status-s", "--drain-s", *COMMON,
    ],
    "day0 check": ["REPO?", *WORKSPACE, "--store", "--baseline", "--junit", "--markdown", *COMMON],
    "day0 status": ["REPO?", *WORKSPACE, *COMMON],
    "day0 record": ["FILE?", *COMMON],
    "day0 doctor": [*COMMON],
    "day0 schema": ["NAME?", *COMMON],
    "day0 kernels": [*COMMON],
    "day0 kernels list": [*COMMON],
    "day0 kernels show": ["KIND", *COMMON],
    "day0 kernels test": ["KINDS?", "--match", "--dtype", "--seed", *COMMON],
    "day0 kernels bench": ["KINDS?", "--match", "--peers", *COMMON],
    "day0 recipes": [*COMMON],
    "day0 recipes show": ["NAME", *COMMON],
    "day0 recipes schema": [*COMMON],
}  # fmt: skip


def commands(command, path):
    """(path, command) of a command and all below it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


def described(parameter):
    if parameter.param_type_name == "argument":
        return parameter.name.upper() + ("" if parameter.required else "?")
    longest_first = sorted(parameter.opts, key=len, reverse=True)
    return " ".join(longest_first)


def test_the_surface_is_as_listed():
    found = {
        path: [described(p) for p in command.params] for path, command in commands(typer.main.get_command(app), "day0")
    }
    assert found == SURFACE


def test_every_command_has_help_with_an_example():
    for path, command in commands(typer.main.get_command(app), "day0"):
        if path != "day0":
            assert "Example: day0 " in command.help, path
            assert path in command.help, f"{path}: its example shows another command"
            first_line = command.help.strip().splitlines()[0]
            assert not first_line.endswith("."), f"{path}: a one-line summary has no full stop"
            assert all(getattr(p, "help", None) for p in command.params), f"{path}: a parameter has no help"
