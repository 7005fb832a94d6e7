"""Measures again the parts of an evidence file that are stale, and writes it after each."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.evidence import evidence
from tests.evidence.targets import Target

Parts = dict[str, dict[str, Any]]


def refresh(
    name: str,
    targets: list[Target],
    *,
    command: str,
    inputs: Callable[[Target], Iterable[str]],
    measure: Callable[[Target], dict[str, Any]],
    summarise: Callable[[Parts], dict[str, Any]],
    only: list[str],
    everything: bool,
) -> dict[str, Any]:
    """The summary over all targets, after measuring `only` those named, or `everything`, or what is stale.

    Parts of targets that no longer exist are dropped.
    """
    stored = (evidence.read(name) or {"parts": {}})["parts"]
    parts = {t.name: stored[t.name] for t in targets if t.name in stored}
    fresh = {t.name for t in targets if evidence.is_fresh(parts.get(t.name), inputs(t))}
    due = [t for t in targets if (t.name in only if only else everything or t.name not in fresh)]
    print(f"{name}: {len(due)} of {len(targets)} targets to measure")
    for target in due:
        started = time.monotonic()
        files = list(inputs(target))
        before = evidence.digest(files)
        results = measure(target)
        if evidence.digest(files) != before:
            print(f"{target.name}: not recorded, because what it depends on changed meanwhile")
            continue
        seconds = round(time.monotonic() - started)
        parts[target.name] = evidence.measured(files, {**results, "seconds": seconds})
        evidence.write(name, command=command, summary=summarise(parts), parts=parts)
    summary = summarise(parts)
    evidence.write(name, command=command, summary=summary, parts=parts)
    return summary


def parser(command: str, targets: list[Target]) -> argparse.ArgumentParser:
    """The arguments that both mutation and coverage take."""
    made = argparse.ArgumentParser(prog=command)
    names = [t.name for t in targets]
    made.add_argument("targets", nargs="*", metavar="TARGET", help=f"stale ones by default; of {', '.join(names)}")
    made.add_argument("--all", action="store_true", help="measure everything, stale or not")
    return made


def check_names(chosen: list[str], targets: list[Target]) -> None:
    """Exit with 2 when a name is no target's."""
    unknown = sorted(set(chosen) - {t.name for t in targets})
    if unknown:
        print(f"no target {', '.join(unknown)}; there are {', '.join(t.name for t in targets)}", file=sys.stderr)
        sys.exit(2)
