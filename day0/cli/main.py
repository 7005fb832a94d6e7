"""Where the console script begins: it imports next to nothing, so that Ctrl-C is answered from the first moment on."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
INTERRUPTED_LINES = ("interrupted", "run the same command again: it resumes where it stopped")


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _on_interrupt(signal.default_int_handler, _end_at_once)
    from day0.cli import streams
    from day0.cli.app import invoke

    streams.take_over()
    _on_interrupt(_end_at_once, signal.default_int_handler)
    code = invoke(sys.argv[1:])
    _on_interrupt(signal.default_int_handler, _end_at_once)
    sys.exit(code)


def _on_interrupt(was: object, handler: Callable[[int, FrameType | None], Any]) -> None:
    """Let `handler` answer Ctrl-C instead of `was`. Where a shell had it ignored, it stays so."""
    if signal.getsignal(signal.SIGINT) == was:
        signal.signal(signal.SIGINT, handler)


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """While modules are imported or torn down an exception may be swallowed or shown, and there is nothing to undo."""
    try:
        os.write(2, "error: {}\nhint: {}\n".format(*INTERRUPTED_LINES).encode())
    finally:
        os._exit(INTERRUPTED)
