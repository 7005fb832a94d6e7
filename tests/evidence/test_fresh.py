"""The evidence in docs/evidence/ speaks of this checkout, covers every kind, and reaches what it must."""

import pytest

from tests.evidence import coverage, evidence
from tests.evidence.targets import kernel_targets
from tests.mutation import run

COMMANDS = {"mutation": run.COMMAND, "coverage": coverage.COMMAND}
NAMES = ("coverage", "families", "mutation")
MEASURED = {
    "mutation": {target.name: run.inputs(target) for target in kernel_targets()},
    "coverage": {target.name: coverage.inputs(target) for target in coverage.targets()},
}


def test_every_evidence_file_is_known():
    assert sorted(path.stem for path in evidence.FOLDER.glob("*.json")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_evidence_is_fresh(name):
    record = evidence.read(name)
    stale = evidence.stale_parts(record)
    assert not stale, f"{name}: {', '.join(stale)} changed since it was measured; run: {record['command']}"


@pytest.mark.parametrize("name", MEASURED)
def test_every_target_is_measured_on_all_that_it_depends_on(name):
    parts = (evidence.read(name) or {"parts": {}})["parts"]
    missing = [
        target
        for target, files in MEASURED[name].items()
        if target not in parts or sorted(set(files)) != parts[target]["files"]
    ]
    assert not missing, f"{name}: {', '.join(missing)} must be measured; run: {COMMANDS[name]}"
    assert set(parts) == set(MEASURED[name])


def test_mutants_of_every_reference_are_killed():
    for target, part in evidence.read("mutation")["parts"].items():
        assert part["rate"] >= run.LEAST, f"{target}: {part['survived']}"
        assert part["killed"] + len(part["survived"]) == part["sampled"] - part["equivalent"]


def test_branches_of_every_reference_and_of_mapping_are_run():
    for target, part in evidence.read("coverage")["parts"].items():
        assert part["branches_percent"] >= coverage.LEAST, f"{target}: {part['sources']}"
