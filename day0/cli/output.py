"""The one place where commands write: data to stdout, talk to stderr, one JSON document under --json."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

# A table that is not on a terminal goes into a file or another program: one row a line, whatever its length.
_UNBOUNDED = 1_000_000
_LONGEST_RULE = 100  # of the line under a table's header, there

Row = Mapping[str, Any]


class Output:
    """What one command says. Progress and notes are for a person; `document` and `table` are the command's answer."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self._answers = sys.stdout  # held: a command's sys.stdout is for whoever prints without being asked

    def document(self, data: Any) -> None:
        """Print the answer as JSON. Does nothing without --json."""
        if self.as_json:
            self.json(data)

    def json(self, data: Any) -> None:
        """Print JSON, asked for by --json or not: the answer of commands that have no other. ASCII, for any locale."""
        self._answers.write(json.dumps(data, indent=1, allow_nan=False) + "\n")

    def json_line(self, data: Any) -> None:
        """Print one of many answers as a line of JSON, at once. Does nothing without --json."""
        if self.as_json:
            self._answers.write(json.dumps(data, allow_nan=False) + "\n")
            self._answers.flush()

    def table(self, rows: Sequence[Row], *, title: str = "", columns: Sequence[str] | None = None) -> None:
        """Show rows on stdout; every row has the same keys, which are the columns. Does nothing under --json or -q."""
        if self.as_json or self.quiet or not rows:
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in columns or rows[0]:
            numbers = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
            table.add_column(name.replace("_", " "), justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(_cell(row[name])) for name in columns or row))
        console = self._console(self._answers)
        with console.capture() as captured:
            console.print(table)
        # rich draws every line to the table's width, which logs and diffs do not need.
        longest = None if console.is_terminal else _LONGEST_RULE
        drawn = [line.rstrip() for line in captured.get().splitlines()]
        lines = "\n".join(line[:longest] if set(line) <= {" ", "─"} else line for line in drawn)
        heading = f"{title}\n\n" if title else ""  # not rich's title, which folds at the table's width
        self._answers.write(heading + lines.strip("\n") + "\n\n")

    def line(self, text: str = "") -> None:
        """One line of the answer on stdout. Does nothing under --json or -q."""
        if not self.as_json and not self.quiet:
            self._console(self._answers).print(text, markup=False, highlight=False, soft_wrap=True)

    def value(self, text: str) -> None:
        """What remains of the answer under -q: a path, a name. Does nothing under --json."""
        if not self.as_json:
            self._answers.write(f"{text}\n")

    def note(self, text: str) -> None:
        """Talk, on stderr. Silent under -q."""
        if not self.quiet:
            self._console(sys.stderr).print(text, markup=False, highlight=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Talk that only -v shows."""
        if self.verbose:
            self.note(text)

    def warn(self, text: str) -> None:
        """A warning, on stderr, also under -q: silence is what hides faults."""
        self._console(sys.stderr).print(
            f"warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True
        )

    @property
    def live(self) -> "Console | None":
        """A console for what is drawn anew all the time; None where nobody would see it so."""
        console = self._console(sys.stderr)
        in_ci = os.environ.get("CI", "").lower() in ("1", "true")
        return console if console.is_terminal and not console.is_dumb_terminal and not in_ci else None

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Say what is going on until it is done, and how long it took: a spinner on a terminal, a line elsewhere.

        Gives a function that says what was reached meanwhile, a line each.
        """
        if self.quiet:
            yield lambda reached: None
            return
        from rich.markup import escape

        begun = time.monotonic()
        console = self._console(sys.stderr)
        if not console.is_terminal or os.environ.get("CI", "").lower() in ("1", "true"):
            self.note(f"{text} ...")
            yield self.note
        else:
            with console.status(escape(text)):  # what its own console prints stands above the spinner
                yield partial(console.print, markup=False, highlight=False, soft_wrap=True)
        self.note(f"{text}: {time.monotonic() - begun:.1f} s")

    def _console(self, stream: TextIO) -> "Console":
        from rich.console import Console

        # rich honours NO_COLOR and TERM=dumb, and drops colour where the stream is no terminal.
        return Console(file=stream, width=None if stream.isatty() else _UNBOUNDED)


def error_lines(what: str, what_to_do: str) -> None:
    """The two lines of an error on stderr: what is wrong, what to do."""
    sys.stderr.write(f"error: {' '.join(what.split())}\n")
    if what_to_do:
        sys.stderr.write(f"hint: {' '.join(what_to_do.split())}\n")


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        value = ", ".join(str(v) for v in value)
    return " ".join(str(value).split()) or "-"  # a line break in a cell would break its row


def amount(value: float | None) -> str:
    """A count in the view: 1.5k, 2.3M, 4.1G, 7.9T."""
    if value is None:
        return "-"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def ranges(layers: Sequence[int]) -> str:
    """Layer numbers in the view: 0-2, 4, 6-8."""
    parts: list[str] = []
    start = previous = None
    for layer in [*sorted(layers), None]:
        if start is not None and (layer is None or previous is None or layer != previous + 1):
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = None
        if start is None:
            start = layer
        previous = layer
    return ", ".join(parts)
