"""python -m tests.evidence.coverage: branch coverage of references and of mapping, in docs/evidence/coverage.json."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.evidence.refresh import Parts, check_names, parser, refresh
from tests.evidence.targets import Target, kernel_targets
from tests.house.source_tree import ROOT

COMMAND = "python -m tests.evidence.coverage"
LEAST = 90.0
TIMEOUT_S = 900


def targets() -> list[Target]:
    return [*kernel_targets(), mapping_target()]


def mapping_target() -> Target:
    def found(folder: str, pattern: str) -> tuple[str, ...]:
        return tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob(pattern)))

    return Target("mapping", found("day0/mapping", "[!_]*.py"), found("tests/mapping", "test_*.py"))


def inputs(target: Target) -> list[str]:
    return [*target.depends_on, "tests/evidence/coverage.py"]


def measure(target: Target) -> dict[str, Any]:
    """Per file of the target the share of lines and of branches that its tests run, in percent.

    Raises RuntimeError when the tests do not pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings"
        settings.write_text(f"[run]\nbranch = true\ninclude = {', '.join(target.sources)}\n", encoding="utf-8")
        common = [f"--rcfile={settings}", f"--data-file={folder}/coverage"]
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not verify and not gpu", *target.tests]
        _run("run", *common, *pytest)
        report = Path(folder) / "report.json"
        _run("json", *common, "-o", str(report))
        measured = json.loads(report.read_text(encoding="utf-8"))["files"]
    files = {file: _figures(measured[file]["summary"] if file in measured else None) for file in target.sources}
    branches = sum(f["branches"] for f in files.values())
    percent = _percent(sum(f["branches_run"] for f in files.values()), branches)
    least = min((f["lines_percent"] for f in files.values()), default=100.0)
    print(f"{target.name:24} {percent:5.1f} % of {branches} branches, least {least:.1f} % of a file's lines")
    return {"branches_percent": percent, "sources": files}


def summarise(parts: Parts) -> dict[str, Any]:
    return {"least_percent": LEAST, "branches_percent": {name: p["branches_percent"] for name, p in parts.items()}}


def _figures(summary: dict[str, Any] | None) -> dict[str, Any]:
    if summary is None:
        return {"lines_percent": 0.0, "branches": 0, "branches_run": 0, "branches_percent": 0.0}
    total, run = summary["num_branches"], summary["covered_branches"]
    return {
        "lines_percent": _percent(summary["covered_lines"], summary["num_statements"]),
        "branches": total,
        "branches_run": run,
        "branches_percent": _percent(run, total),
    }


def _percent(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 1) if whole else 100.0


def _run(*args: str) -> None:
    command = [sys.executable, "-m", "coverage", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")


def main() -> int:
    everything = targets()
    options = parser(COMMAND, everything).parse_args()
    check_names(options.targets, everything)
    summary = refresh(
        "coverage",
        everything,
        command=COMMAND,
        inputs=inputs,
        measure=measure,
        summarise=summarise,
        only=options.targets,
        everything=options.all,
    )
    low = {name: percent for name, percent in summary["branches_percent"].items() if percent < LEAST}
    for name, percent in low.items():
        print(f"{name}: {percent} % of branches is below {LEAST} %")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
