"""Ctrl-C at any moment of the process: while it imports, while it works, and while it ends."""

import signal
import subprocess
import sys

import pytest

from day0.cli.main import INTERRUPTED_LINES
from tests.cli.run_day0 import START

SHOWN = "error: {}\nhint: {}\n".format(*INTERRUPTED_LINES)
INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"

# Interrupts itself when it first looks for the module.
AT_IMPORT = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            {INTERRUPT}
sys.meta_path.insert(0, Finder())
{START}
"""
AT_EXIT = f"import atexit, os, signal; atexit.register(lambda: {INTERRUPT}); {START}"


def heed():
    # The tests themselves may run where interrupts are ignored: in the background of a script.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(code, preexec_fn=heed):
    ran = subprocess.run(
        [sys.executable, "-c", code, "kernels"], capture_output=True, text=True, timeout=120, preexec_fn=preexec_fn
    )
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "module", ["day0.cli.streams", "typer", "day0.cli.check", "day0.kernels.registry", "rich.table"]
)
def test_an_interrupt_during_imports_shows_no_traceback(module):
    assert ended(f"MODULE = {module!r}{AT_IMPORT}") == (130, SHOWN)


def test_an_interrupt_at_the_end_shows_no_traceback():
    assert ended(AT_EXIT) == (130, SHOWN)


def test_an_interrupt_that_the_shell_ignores_stays_ignored():
    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    assert ended(AT_EXIT, preexec_fn=ignore) == (0, "")
