"""python -m tests.families: the whole line on every family with two seeds, into docs/evidence/families.json."""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# This folder holds `kernels/` under the name of another package: see tests/conftest.py.
ROOT = Path(__file__).resolve().parents[2]
import tests  # noqa: E402, F401

sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

from tests.evidence.refresh import check_names, parser, refresh  # noqa: E402
from tests.evidence.targets import Target  # noqa: E402
from tests.families.line import FAMILIES, SEEDS, depends_on, run_line  # noqa: E402

COMMAND = "python -m tests.families"


def targets() -> list[Target]:
    return [Target(f"{family}, seed {seed}", (), ()) for family in FAMILIES for seed in SEEDS]


def _family(target: Target) -> tuple[str, int]:
    family, _, seed = target.name.partition(", seed ")
    return family, int(seed)


def _measure(target: Target) -> dict[str, Any]:
    result = run_line(*_family(target))
    print(f"{target.name:24} {result['verdict']}  {result['proved']}/{result['operators']} proved", flush=True)
    return result


def _summarise(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "hold": sum(part["verdict"] == "holds" for part in parts.values()),
        "lines": len(parts),
        "worst_exactness_error": max((part["exactness_error"] for part in parts.values()), default=0.0),
    }


def main() -> int:
    every = targets()
    options = parser(COMMAND, every).parse_args()
    check_names(options.targets, every)
    summary = refresh(
        "families",
        every,
        command=COMMAND,
        inputs=lambda target: depends_on(_family(target)[0]),
        measure=_measure,
        summarise=_summarise,
        only=options.targets,
        everything=options.all,
    )
    return 0 if summary["hold"] == summary["lines"] else 1


if __name__ == "__main__":
    sys.exit(main())
