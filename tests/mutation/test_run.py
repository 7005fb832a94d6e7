"""The mutation run on a toy: what its tests notice is killed, what they do not survives, what never ends is stopped."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.evidence.targets import kernel_targets
from tests.mutation import mutant, run

SOURCE = """
def clip(x, top):
    while x > top:
        x = x - 1
    return x * 1.0
"""
TESTS = """
import sys
sys.path.insert(0, {folder!r})
from clipping import clip

def test_below_and_at_the_top():
    assert clip(2, 3) == 2
    assert clip(3, 3) == 3

def test_above_the_top():
    assert clip(6, 3) == 3
"""


MUTANTS = ["return x / 1.0", "return x * 2.0", "while x >= top", "x = x - 0"]
OTHER_TESTS = {
    "sleeps": "import time\ndef test():\n    time.sleep(60)\n",
    "crashes": f"import os\ndef test():\n    os.kill(os.getpid(), {int(signal.SIGSEGV)})\n",
    "passes": "def test():\n    pass\n",
}
# A process of its own forks: this one has threads when tests run in parallel.
DRIVER = """
import json, sys
from functools import partial
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.evidence import child
from tests.mutation import mutant
from tests.mutation.mutate import mutations
sys.path.remove({root!r})

path = Path("clipping.py")
jobs = [
    child.Job(m.after, ["test_clipping.py"], partial(mutant.install, "clipping", path, m), cpu_s=2, wall_s=120)
    for m in mutations("clipping.py", path.read_text())
    if m.after in {mutants!r}
]
jobs += [
    child.Job(name, [f"test_{{name}}.py"], lambda: None, cpu_s=30, wall_s=3 if name == "sleeps" else 120)
    for name in {others!r}
]
outcomes = list(child.run(jobs, workers=2))
assert len(outcomes) == len(jobs) == {count}
print(json.dumps({{o.key: [o.exit_code, o.cpu_s] for o in outcomes}}))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, root):
    """(exit code, processor seconds) of every mutant of the toy, by what its statement became, and of other tests."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n    verify\n")
    (folder / "clipping.py").write_text(SOURCE)
    (folder / "test_clipping.py").write_text(textwrap.dedent(TESTS).format(folder=str(folder)))
    for name, text in OTHER_TESTS.items():
        (folder / f"test_{name}.py").write_text(text)
    driver = DRIVER.format(root=str(root), others=list(OTHER_TESTS), mutants=MUTANTS, count=7)
    done = subprocess.run(
        [sys.executable, "-c", driver], cwd=folder, capture_output=True, text=True, timeout=200, check=True
    )
    return json.loads(done.stdout)


def test_a_noticed_change_fails_and_an_unnoticed_one_passes(outcomes):
    assert outcomes["return x / 1.0"][0] == 0
    assert outcomes["return x * 2.0"][0] == 1
    assert outcomes["while x >= top"][0] == 1
    assert outcomes["passes"][0] == 0


def test_a_mutant_that_never_ends_is_stopped_by_its_processor_time(outcomes):
    code, cpu_s = outcomes["x = x - 0"]
    assert code is None and cpu_s >= 2


def test_a_mutant_that_sleeps_is_stopped_by_the_clock(outcomes):
    code, cpu_s = outcomes["sleeps"]
    assert code is None and cpu_s < 3


def test_a_mutant_that_crashes_counts_as_failed(outcomes):
    assert outcomes["crashes"][0] == 1


def test_a_module_that_is_imported_already_cannot_be_the_mutant():
    with pytest.raises(ValueError, match="already imported"):
        mutant.install("json", None, None)


@pytest.mark.parametrize("target", kernel_targets(), ids=lambda target: target.name)
def test_every_reviewed_equivalent_is_a_mutation_of_the_target(target):
    """An edit of the source drops its entries from the list: they were judged on another text."""
    unknown = [str(m) for m in set(run.equivalent_mutations(target)) - set(run.all_mutations(target))]
    assert not unknown, "\n".join(unknown)


def test_every_list_of_equivalents_belongs_to_a_target():
    expected = {run.equivalent_file(target).name for target in kernel_targets()}
    assert {path.name for path in run.EQUIVALENT.iterdir()} <= expected
