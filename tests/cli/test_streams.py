"""stdout and stderr as a shell may leave them: closed, full, without a reader, and shared with what others print."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.run_day0 import START, day0_process

COMMANDS = [("--help",), ("schema", "recipe"), ("kernels",), ("kernels", "--json")]
NOT_OPEN = "error: cannot write to stdout: it is not open for writing"
FULL = "error: cannot write to stdout: No space left on device"


def shell(line, *arguments):
    """(exit code, stderr) of a shell line in which `day0` stands for the command with its arguments."""
    day0 = '"$PYTHON" -c "$START" "$@"'
    ran = subprocess.run(
        ["sh", "-c", line.replace("day0", day0), "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHON": sys.executable, "START": START},
    )
    return ran.returncode, ran.stderr


@pytest.mark.parametrize("arguments", COMMANDS)
@pytest.mark.parametrize(("line", "what"), [("day0 >&-", NOT_OPEN), ("day0 >/dev/full", FULL)])
def test_an_answer_that_cannot_be_written_is_an_error(arguments, line, what):
    code, err = shell(line, *arguments)
    first, second = err.splitlines()
    assert (code, first) == (2, what) and second.startswith("hint: ")


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_goes_away_ends_day0_quietly_as_it_ends_other_programs(arguments):
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run([sys.executable, "-c", START, *arguments], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (128 + signal.SIGPIPE, b"")


def test_an_error_reaches_stderr_and_its_code_whatever_stdout_is():
    for line in ("day0 >&-", "day0 >/dev/full", "day0 <&- >&-"):
        code, err = shell(line, "kernels", "show", "nothing")
        assert code == 2 and err.startswith("error: no kind 'nothing'\n")


@pytest.mark.parametrize("line", ["day0 2>&-", "day0 2>/dev/full", "day0 <&- >&- 2>&-"])
def test_the_code_of_an_error_stands_where_it_cannot_be_shown(line):
    assert shell(line, "kernels", "show", "nothing") == (2, "")


@pytest.mark.parametrize("line", ["day0 >/dev/null 2>&-", "day0 <&- >/dev/null"])
def test_a_closed_stream_that_is_not_used_does_no_harm(line):
    assert shell(line, "kernels") == (0, "")


PRINTS = """
import os, subprocess, sys
print("python")
os.write(1, b"descriptor\\n")
subprocess.run(["echo", "subprocess"])
sys.__stdout__.write("original\\n")
"""


@pytest.mark.parametrize("arguments", [("kernels", "--json"), ("kernels", "-q"), ("schema", "plan")])
def test_what_others_print_does_not_reach_stdout(arguments):
    """They print while a command runs: here, from a module that it imports."""
    plain = day0_process(*arguments)
    code = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "day0.kernels.registry" or name == "day0.mapping.device":
            sys.meta_path.remove(self)
            exec({PRINTS!r})
sys.meta_path.insert(0, Finder())
{START}
"""
    ran = day0_process(*arguments, code=code)
    assert (ran.code, ran.out) == (0, plain.out)
    assert sorted(ran.err.split()) == ["descriptor", "original", "python", "subprocess"]


def test_an_answer_is_readable_in_any_locale():
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert day0_process("kernels", env=env).code == 0
    assert json.loads(day0_process("recipes", "--json", env=env).out)
