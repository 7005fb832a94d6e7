"""stdout and stderr of the process: a write that fails has a name, and nothing but answers reaches stdout."""

import errno
import io
import os
import sys
from typing import NoReturn

from day0.errors import Day0Error


class ReaderGone(Exception):
    """Whoever read our output went away before the end (`day0 kernels | head -1`)."""


class Stream(io.TextIOWrapper):
    """A standard stream without a buffer of its own. A write raises ReaderGone, or Day0Error when it fails otherwise.

    typer would answer a broken pipe by ending the process with 1, which says that a gate does not hold.
    """

    def __init__(self, descriptor: int, name: str, encoding: str) -> None:
        super().__init__(os.fdopen(descriptor, "wb"), encoding=encoding, errors="backslashreplace")
        self.shown_name = name

    def write(self, text: str) -> int:
        try:
            count = super().write(text)
            super().flush()
        except OSError as error:
            self._failed(error)
        return count

    def _failed(self, error: OSError) -> NoReturn:
        # What is still buffered goes nowhere: the interpreter would try it again when it ends, and show a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        if error.errno == errno.EPIPE:
            raise ReaderGone from error
        why = "it is not open for writing" if error.errno == errno.EBADF else error.strerror
        raise Day0Error(
            f"cannot write to {self.shown_name}: {why}", hint=f"send {self.shown_name} to a terminal or another file"
        ) from error


def take_over() -> None:
    """Make `sys.stdout` and `sys.stderr` Streams, and send what others write to descriptor 1 to stderr.

    Those others are a package that a user edited, a repo's own code, C libraries, and subprocesses.
    """
    _fill_closed()
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = Stream(answers, "stdout", encoding)
    sys.stderr = Stream(os.dup(2), "stderr", sys.stderr.encoding if sys.stderr else "utf-8")


def _fill_closed() -> None:
    """Open the standard descriptors that are closed, so that no other file gets their numbers.

    stdout is opened for reading: to write an answer nowhere must fail, as it does for other programs.
    """
    for descriptor, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)
