"""python -m tests.mutation: mutates the references, runs their tests, writes docs/evidence/mutation.json."""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
# This folder holds `kernels/` under the name of another package: see tests/conftest.py.
ROOT = Path(__file__).resolve().parents[2]
import tests  # noqa: E402, F401

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

from tests.evidence import evidence  # noqa: E402
from tests.evidence.targets import Target, kernel_targets  # noqa: E402
from tests.mutation import run  # noqa: E402

COMMAND = "python -m tests.mutation"
MACHINERY = ("tests/mutation/mutate.py", "tests/mutation/mutant.py", "tests/mutation/run.py", "tests/evidence/child.py")


def inputs(target: Target) -> list[str]:
    """The files that a target's rate depends on."""
    listed = run.equivalent_file(target)
    reviewed = [listed.relative_to(ROOT).as_posix()] if listed.is_file() else []
    return [*target.depends_on, *MACHINERY, *reviewed]


def main() -> int:
    options = _options()
    targets = kernel_targets()
    unknown = set(options.targets) - {t.name for t in targets}
    if unknown:
        print(f"no target {', '.join(sorted(unknown))}; there are {', '.join(t.name for t in targets)}")
        return 2
    parts = (evidence.read("mutation") or {"parts": {}})["parts"]
    parts = {t.name: parts[t.name] for t in targets if t.name in parts}
    due = [
        t
        for t in targets
        if t.name in options.targets
        or (not options.targets and (options.all or not evidence.is_fresh(parts.get(t.name), inputs(t))))
    ]
    print(f"{len(due)} of {len(targets)} targets to run")
    run.warm_up(due)
    for target in due:
        started = time.monotonic()
        result = run.run_target(target, count=options.sample, workers=options.workers, tell=_tell)
        seconds = round(time.monotonic() - started)
        tried = result["sampled"] - result["equivalent"]
        _tell("")
        print(
            f"{target.name:24} {result['killed']:4} of {tried:4} killed   {100 * result['rate']:5.1f} %   {seconds} s"
        )
        for survivor in result["survived"]:
            print(f"    survived: {survivor}")
        if options.sample == run.SAMPLE:
            parts[target.name] = evidence.measured(inputs(target), {**result, "seconds": seconds})
            evidence.write("mutation", command=COMMAND, summary=summary(parts), parts=parts)
    total = summary(parts)
    print(f"all targets: {total['killed']} of {total['tried']} killed, {100 * total['rate']:.1f} %")
    return 0 if total["rate"] >= 0.95 else 1


def summary(parts: dict[str, dict]) -> dict:
    killed = sum(part["killed"] for part in parts.values())
    tried = sum(part["sampled"] - part["equivalent"] for part in parts.values())
    return {"killed": killed, "tried": tried, "rate": run.rate(killed, tried), "seed": run.SEED, "sample": run.SAMPLE}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("targets", nargs="*", help="kinds, or common/<file>; without any, all whose evidence is stale")
    parser.add_argument("--all", action="store_true", help="measure the targets with fresh evidence too")
    parser.add_argument(
        "--sample", type=int, default=run.SAMPLE, help="mutants a target; another number writes nothing"
    )
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
