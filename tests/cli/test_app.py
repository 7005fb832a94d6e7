import os
import subprocess
import sys

import pytest
import typer

import day0
from day0.cli import app as app_module
from day0.cli import common
from day0.cli.app import invoke
from day0.errors import Day0Error
from tests.cli.run_day0 import day0 as run_day0
from tests.cli.run_day0 import day0_process

HEAVY = ("torch", "transformers", "pydantic", "triton", "numpy", "yaml", "rich")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from day0.cli.app import invoke; code = invoke(['--help'])\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    ran = day0_process(code=code)
    assert ran.code == 0 and "Usage: day0" in ran.out
    assert ran.err.strip() == "[]"


def test_help_costs_little_beside_python_itself():
    """In CPU time, so that a busy machine changes nothing: 0.3 s are asked for on a quiet one."""

    def cpu_seconds(code):
        times = "import os; print(sum(os.times()[:2]))"
        return min(float(day0_process(code=f"{code}\n{times}").out.splitlines()[-1]) for _ in range(3))

    bare = cpu_seconds("pass")
    assert cpu_seconds("from day0.cli.app import invoke; invoke(['--help'])") - bare < 0.3


def test_version(capsys):
    ran = run_day0(capsys, "--version")
    assert (ran.code, ran.out) == (0, f"day0 {day0.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "what", "what_to_do"),
    [
        (["frobnicate"], "No such command 'frobnicate'", "see `day0 --help`"),
        (["map", "--dtyp", "float32"], "No such option: --dtyp", "see `day0 map --help`"),
        (["map", "--dtype", "int3"], "int3", "see `day0 map --help`"),
        (["kernels", "show"], "KIND", "see `day0 kernels show --help`"),
        (["sample", "demo"], "give one of --prompt and --prompt-ids", "see `day0 sample --help`"),
        (["run", "demo", "--trust-remote-code=maybe"], "only =unsandboxed may follow", "see `day0 run --help`"),
        (["run", "demo", "--from", "nowhere"], "nowhere", "see `day0 run --help`"),
    ],
)
def test_a_wrong_command_line_is_two_lines_and_exit_2(capsys, arguments, what, what_to_do):
    ran = run_day0(capsys, *arguments)
    first, second = ran.err.splitlines()
    assert ran.code == 2 and ran.out == ""
    assert first.startswith("error: ") and what in first
    assert second == f"hint: {what_to_do}"


@pytest.fixture
def failing(monkeypatch):
    """failing(exception): a day0 whose only command raises it."""

    def make(exception):
        made = typer.Typer(rich_markup_mode=None)

        @made.command("one")
        @common.command
        def one(out):
            raise exception

        @made.command("two")
        def two():
            pass

        monkeypatch.setattr(app_module, "app", made)

    return make


class Inconclusive(Day0Error):
    exit_code = 3


@pytest.mark.parametrize(
    ("exception", "code", "lines"),
    [
        (Day0Error("it broke", hint="mend it"), 2, ["error: it broke", "hint: mend it"]),
        (Day0Error("it broke"), 2, ["error: it broke"]),
        (Day0Error("one\ntwo", hint="three\nfour"), 2, ["error: one two", "hint: three four"]),
        (Inconclusive("too noisy"), 3, ["error: too noisy"]),
        (typer.Exit(1), 1, []),
        (typer.Exit(3), 3, []),
        (KeyboardInterrupt(), 130, ["error: interrupted", "hint: run the same command again"]),
        (ValueError("oops"), 2, ["error: ValueError: oops", "hint: this is a fault in day0"]),
    ],
)
def test_how_a_command_ends(failing, capsys, exception, code, lines):
    failing(exception)
    ran = run_day0(capsys, "one")
    shown = [line for line in ran.err.splitlines() if line]
    assert ran.code == code
    assert len(shown) == len(lines) and all(map(str.startswith, shown, lines))


def test_debug_shows_the_traceback(failing, capsys):
    failing(Day0Error("it broke", hint="mend it"))
    ran = run_day0(capsys, "one", "--debug")
    assert "Traceback" in ran.err and ran.err.endswith("error: it broke\nhint: mend it\n")
    assert "Traceback" not in run_day0(capsys, "one").err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_sees_no_traceback_and_nothing_holds(unbuffered):
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-c", "from day0.cli.app import main; main()", "schema", "plan"],
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(write)
    assert ran.stderr == b""
    assert ran.returncode == (2 if unbuffered else 0)


def test_trust_alone_means_sandboxed():
    flag = "--trust-remote-code"
    assert common.expand_trust(["run", flag, "repo"]) == ["run", f"{flag}=sandboxed", "repo"]
    assert common.expand_trust([f"{flag}=unsandboxed"]) == [f"{flag}=unsandboxed"]
    assert common.check_trust("unsandboxed") == "unsandboxed" and common.check_trust(None) is None


@pytest.mark.parametrize(("verdict", "code"), [("holds", None), ("does not hold", 1), ("inconclusive", 3)])
def test_verdicts_become_exit_codes(verdict, code):
    if code is None:
        common.gate(verdict)
    else:
        with pytest.raises(typer.Exit) as ended:
            common.gate(verdict)
        assert ended.value.exit_code == code


def test_invoke_without_arguments_shows_help(capsys):
    assert invoke([]) == 2
    captured = capsys.readouterr()
    assert "Usage: day0" in captured.out + captured.err
