"""The console script `day0`: its commands, and how errors end it."""

import os
import traceback

import typer
from typer.exceptions import Abort, TyperException

from day0 import __version__
from day0.cli import (
    align,
    check,
    common,
    decompose,
    doctor,
    generate,
    kernels,
    map,
    recipes,
    record,
    run,
    sample,
    schema,
    serve,
    status,
)
from day0.cli.main import INTERRUPTED, INTERRUPTED_LINES
from day0.cli.output import error_lines
from day0.cli.streams import ReaderGone
from day0.errors import Day0Error

HOLDS = 0
COULD_NOT_RUN = 2
READER_GONE = 141  # as a shell reports any program that such a pipe ends: 128 + SIGPIPE

app = typer.Typer(
    name="day0",
    help="Take a new model's repo from never seen to runs, and prove how close it is to its reference.",
    epilog="Exit codes: 0 holds, 1 a gate does not hold, 2 could not run, 3 inconclusive, 130 interrupted, "
    "141 reader gone.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"day0 {__version__}")
        raise typer.Exit


@app.callback()
def _day0(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version", callback=_print_version, is_eager=True),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(COULD_NOT_RUN)  # nothing was asked, and nothing holds


# In the order of the line; help lists them so.
app.command("run")(run.run)
app.command("decompose")(decompose.decompose)
app.command("map")(map.map_)
app.command("generate")(generate.generate)
app.command("align")(align.align)
app.command("sample")(sample.sample)
app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("status")(status.status)
app.command("record")(record.record)
app.command("doctor")(doctor.doctor)
app.add_typer(kernels.app, name="kernels")
app.add_typer(recipes.app, name="recipes")
app.command("schema")(schema.schema)


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    common.debugging = "--debug" in arguments
    try:
        return _run(arguments)
    except ReaderGone:
        return READER_GONE
    except Day0Error:  # of writing the error lines themselves: there is no place left to say anything
        return COULD_NOT_RUN


def _run(arguments: list[str]) -> int:
    try:
        _refuse_undecodable(arguments)
        # typer returns the code of an Exit, and Exit(130) for Ctrl-C; commands themselves return None.
        code = app(args=common.expand_trust(arguments), prog_name="day0", standalone_mode=False) or HOLDS
    except (Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Day0Error as error:
        _show(error.message, error.hint)
        return error.exit_code
    except TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "day0")
        _show(error.format_message(), f"see `{command} --help`")
        return COULD_NOT_RUN
    except ReaderGone:
        raise
    except OSError as error:
        _show(*_machine_words(error))
        return COULD_NOT_RUN
    except Exception as error:  # a fault of day0 itself: still two lines
        _show(f"{type(error).__name__}: {error}", "this is a fault in day0: run again with --debug and report it")
        return COULD_NOT_RUN
    if code == INTERRUPTED:
        error_lines(*INTERRUPTED_LINES)
    return int(code)


def _refuse_undecodable(arguments: list[str]) -> None:
    """Bytes that are no text come in as lone surrogates, which no tokenizer, JSON file or terminal takes."""
    for argument in arguments:
        if any(0xD800 <= ord(character) <= 0xDFFF for character in argument):
            shown = os.fsencode(argument).decode(errors="backslashreplace")
            raise Day0Error(f"the argument {shown} is not UTF-8 text", hint="write it in UTF-8, or rename the file")


def _machine_words(error: OSError) -> tuple[str, str]:
    """What the machine refused, and what to do about it."""
    where = f": {error.filename}" if error.filename else ""
    return (
        f"{error.strerror or error}{where}",
        "check space and permissions there (TMPDIR moves temporary files); --debug shows more",
    )


def _show(what: str, what_to_do: str) -> None:
    if common.debugging:
        traceback.print_exc()
    error_lines(what, what_to_do)
