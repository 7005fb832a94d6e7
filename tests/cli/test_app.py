import errno
import os

import pytest
import typer

import day0
from day0.cli import app as app_module
from day0.cli import common
from day0.demo import model_path
from day0.errors import Day0Error
from tests.cli.run_day0 import START, day0_process
from tests.cli.run_day0 import day0 as run_day0

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
        (["sample", "demo"], "give one of --prompt, --prompt-ids and --prompts", "see `day0 sample --help`"),
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


def test_day0_alone_shows_its_help_as_help_and_holds_nothing(capsys):
    ran = run_day0(capsys)
    assert ran.code == 2 and ran.out == ""
    lines = ran.err.splitlines()
    assert lines[0].startswith("Usage: day0") and any(line.startswith("  decompose  ") for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sample", "demo", "--prompt"),
        ("align", "demo", "--text"),
        ("run",),
        ("status", "-w"),
        ("decompose", "demo", "--recipe"),
        ("kernels", "show"),
        ("record",),
    ],
)
def test_bytes_that_are_no_text_are_refused_wherever_they_stand(capsys, arguments):
    ran = run_day0(capsys, *arguments, os.fsdecode(b"caf\xe9"))
    assert ran.code == 2
    assert ran.err == ("error: the argument caf\\xe9 is not UTF-8 text\nhint: write it in UTF-8, or rename the file\n")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device", "/full"), OSError("odd")])
def test_what_the_machine_refuses_is_no_fault_of_day0(failing, capsys, error):
    failing(error)
    ran = run_day0(capsys, "one")
    first, second = ran.err.splitlines()
    assert ran.code == 2 and first in ("error: No space left on device: /full", "error: odd")
    assert "TMPDIR" in second and "fault" not in ran.err


def test_a_current_folder_that_is_gone_is_named(tmp_path):
    gone = str(tmp_path / "gone")
    code = f"import os; os.mkdir({gone!r}); os.chdir({gone!r}); os.rmdir({gone!r}); {START}"
    for arguments in (("status",), ("run", model_path())):
        ran = day0_process(*arguments, code=code)
        assert ran.code == 2 and ran.err.startswith("error: the current folder is no longer there\nhint: ")
