"""python -m tests.mutation: mutates the references, runs their tests, writes docs/evidence/mutation.json."""

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# This folder holds `kernels/` under the name of another package: see tests/conftest.py.
ROOT = Path(__file__).resolve().parents[2]
import tests  # noqa: E402, F401

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

from tests.evidence.refresh import check_names, parser, refresh  # noqa: E402
from tests.evidence.targets import Target, kernel_targets  # noqa: E402
from tests.mutation import run  # noqa: E402


def main() -> int:
    targets = kernel_targets()
    arguments = parser(run.COMMAND, targets)
    arguments.add_argument("--every-mutant", action="store_true", help="try all instead of a sample; writes nothing")
    arguments.add_argument("--workers", type=int, default=2)
    options = arguments.parse_args()
    check_names(options.targets, targets)

    def measure(target: Target) -> dict[str, Any]:
        return _measure(target, None if options.every_mutant else run.SAMPLE, options.workers)

    if options.every_mutant:
        found = {t.name: measure(t) for t in targets if not options.targets or t.name in options.targets}
        summary = run.summarise(found)
    else:
        summary = refresh(
            "mutation",
            targets,
            command=run.COMMAND,
            inputs=run.inputs,
            measure=measure,
            summarise=run.summarise,
            only=options.targets,
            everything=options.all,
        )
    print(f"all targets: {summary['killed']} of {summary['tried']} mutants killed, {100 * summary['rate']:.1f} %")
    return 0 if not summary["below"] else 1


def _measure(target: Target, count: int | None, workers: int) -> dict[str, Any]:
    started = time.monotonic()
    result = run.run_target(target, count=count, workers=workers, tell=_tell)
    _tell("")
    tried = result["sampled"] - result["equivalent"]
    figures = f"{result['killed']:4} of {tried:4} killed  {100 * result['rate']:5.1f} %"
    print(f"{target.name:24} {figures}  {time.monotonic() - started:.0f} s", flush=True)
    for survivor in result["survived"]:
        print(f"    survived: {survivor}", flush=True)
    return result


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
