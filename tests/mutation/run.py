"""Mutation runs: each target's sampled mutants against its tests, in processes forked from a warm one."""

import random
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from tests.evidence import child
from tests.evidence.targets import Target, external_imports, module_name
from tests.house.source_tree import ROOT
from tests.mutation.mutant import install
from tests.mutation.mutate import Mutation, mutations, sample

COMMAND = "python -m tests.mutation"
SEED = 20250611
SAMPLE = 40
LEAST = 0.95
MACHINERY = ("tests/mutation/mutate.py", "tests/mutation/mutant.py", "tests/mutation/run.py", "tests/evidence/child.py")
EQUIVALENT = Path(__file__).resolve().parent / "equivalent"


def inputs(target: Target) -> list[str]:
    """The files that a target's rate depends on."""
    listed = equivalent_file(target)
    reviewed = [listed.relative_to(ROOT).as_posix()] if listed.is_file() else []
    return [*target.depends_on, *MACHINERY, *reviewed]


def all_mutations(target: Target) -> list[Mutation]:
    """Every mutation of a target's sources."""
    return [m for file in target.sources for m in mutations(file, (ROOT / file).read_text(encoding="utf-8"))]


def equivalent_file(target: Target) -> Path:
    """The reviewed list of mutations that change nothing a caller could see."""
    return EQUIVALENT / f"{target.name.replace('/', '_')}.yaml"


def equivalent_mutations(target: Target) -> dict[Mutation, str]:
    """The reviewed list as mutation -> reason. Raises ValueError on an entry without its five fields."""
    path = equivalent_file(target)
    found = {}
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or [] if path.is_file() else []:
        if set(entry) - {"occurrence"} != {"file", "function", "before", "after", "reason"}:
            raise ValueError(f"{path.name}: an entry has {sorted(entry)}")
        reason = entry.pop("reason")
        found[Mutation(**entry)] = reason
    return found


def run_target(target: Target, *, count: int | None, workers: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Results of one target over `count` sampled mutations (None: all).

    Raises RuntimeError when its tests do not pass without a mutation, or fail on one that is listed as equivalent.
    """
    _warm_up(target)
    generated = all_mutations(target)
    drawn = generated if count is None else sample(generated, count, SEED)
    known = equivalent_mutations(target)
    base = _baseline(target)
    # Room for a mutant that computes more; one that never ends costs no more than this.
    cpu_s, wall_s = 10 + 5 * base, 60 + 50 * base
    killed: list[Mutation] = []
    survived: list[Mutation] = []
    timeouts = 0
    jobs = (child.Job(m, target.tests, partial(_become, m), cpu_s, wall_s) for m in drawn)
    for outcome in child.run(jobs, workers):
        if outcome.exit_code not in (0, 1, 2, None):
            raise RuntimeError(f"pytest ended with {outcome.exit_code} on {outcome.key}")
        (killed if outcome.exit_code != 0 else survived).append(outcome.key)
        timeouts += outcome.exit_code is None
        tell(f"{target.name}: {len(killed) + len(survived)} of {len(drawn)}, {len(survived)} survived")
    wrong = [str(m) for m in killed if m in known]
    if wrong:
        raise RuntimeError("listed as equivalent, but a test fails on it:\n" + "\n".join(wrong))
    equivalent = sum(m in known for m in survived)
    survived = [m for m in survived if m not in known]
    return {
        "generated": len(generated),
        "sampled": len(drawn),
        "equivalent": equivalent,
        "killed": len(killed),
        "killed_by_time": timeouts,
        "survived": sorted(str(m) for m in survived),
        "rate": rate(len(killed), len(killed) + len(survived)),
    }


def rate(killed: int, tried: int) -> float:
    """Share of the mutants that are not equivalent and were killed; 1 of none."""
    return round(killed / tried, 4) if tried else 1.0


def summarise(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Figures over all targets; `below` names those with a rate under the least."""
    killed = sum(part["killed"] for part in parts.values())
    tried = sum(part["sampled"] - part["equivalent"] for part in parts.values())
    below = sorted(name for name, part in parts.items() if part["rate"] < LEAST)
    return {
        "killed": killed,
        "tried": tried,
        "rate": rate(killed, tried),
        "least_rate": LEAST,
        "below": below,
        "seed": SEED,
        "sample": SAMPLE,
    }


def _warm_up(target: Target) -> None:
    """Import here what the tests import from outside this project, so that a forked process need not."""
    for name in sorted(external_imports(target.tests)):
        import_module(name)


def _baseline(target: Target) -> float:
    """Processor seconds of the target's tests as they are."""
    (outcome,) = child.run([child.Job(None, target.tests, partial(_become, None), 600, 1200)], 1)
    if outcome.exit_code != 0:
        raise RuntimeError(f"{target.name}: its tests do not pass as they are (pytest exit code {outcome.exit_code})")
    return outcome.cpu_s


def _become(mutation: Mutation | None) -> None:
    """Make this process the mutant (None: leave the sources), with the same random numbers for each."""
    import torch

    random.seed(SEED)
    torch.manual_seed(SEED)
    if mutation is not None:
        install(module_name(mutation.file), ROOT / mutation.file, mutation)
