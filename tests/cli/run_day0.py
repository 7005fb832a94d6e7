"""Runs the command line in this process, or, where the process itself matters, in one of its own."""

import json
import subprocess
import sys
from dataclasses import dataclass

from day0.cli.app import invoke


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def day0(capsys, *arguments):
    """Exit code, stdout and stderr of `day0 <arguments>`."""
    capsys.readouterr()
    code = invoke([str(a) for a in arguments])
    captured = capsys.readouterr()
    return Ran(code, captured.out, captured.err)


START = "from day0.cli.main import main; main()"


def day0_process(*arguments, env=None, code=START):
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=env
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)
