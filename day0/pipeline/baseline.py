"""The alignment of a line against a stored baseline."""

from pathlib import Path

from day0.artifacts.alignment import Alignment
from day0.check.baseline import Baseline, Entry, store
from day0.check.compare import Report, compare
from day0.errors import Day0Error
from day0.pipeline.line import Line


def store_baseline(line: Line, path: Path) -> Entry:
    """Store the workspace's alignment in a baseline file. Raises Day0Error when it does not hold or is stale."""
    stale, what_to_do = _stale_alignment(line)
    if stale:
        raise Day0Error(f"align.json is out of date: {stale}", hint=what_to_do)
    return store(Alignment.read(line.workspace.folder), path).entries[-1]


def check(line: Line, path: Path) -> Report:
    """Hold the workspace's alignment to a baseline file. Raises Day0Error when either is missing."""
    stale, what_to_do = _stale_alignment(line)
    alignment = Alignment.read(line.workspace.folder)
    if not path.exists():
        raise Day0Error(f"{path} does not exist", hint="store a baseline with `day0 check --store`")
    return compare(alignment, Baseline.read(path.parent, path.name), stale=f"{stale}: {what_to_do}" if stale else "")


def _stale_alignment(line: Line) -> tuple[str, str]:
    """Why the alignment is out of date, and what to do; empty where it is not. Raises Day0Error where there is none."""
    states = line.states_as_run()
    line.refuse_missing(states)
    first = next((state for state in states if state.state != "fresh"), None)
    if first is None:
        return "", ""
    return (first.why if first.stage == "align" else f"{first.stage}: {first.why}"), line.run_again(states)
