"""A repo with code of its own goes through the whole line, its code in the sandbox only."""

import sys

import pytest
import torch

from day0.align.sandboxed import run_trusted
from day0.align.stage import Options
from day0.artifacts.inventory import Inventory
from day0.errors import Day0Error
from day0.pipeline import RunOptions, open_line
from tests.decompose.remote_repo import write_remote_repo


def test_attention_residuals_from_repo_to_alignment(tmp_path):
    source = write_remote_repo(tmp_path / "repo")
    line = open_line(str(source), RunOptions(trust="sandboxed"), tmp_path / "repo.day0")
    for stage in ("decompose", "map", "generate"):
        assert line.run_one(stage) in ("", "holds")
    inventory = Inventory.read(line.workspace.folder)
    assert {o.evidence.established for o in inventory.operators} == {"proved"}
    options = Options(greedy_tokens=8, dtypes=(torch.float32,))
    package = line.workspace.folder / "package"
    found = run_trusted(line.repo, package, inventory, options, line.expected("align"), trust="sandboxed")
    assert found.holds == "holds", found.gates
    assert {g.name for g in found.gates} == {"reference", "exactness", "precision float32", "greedy", "invariance"}
    assert any("its own word" in warning for warning in found.warnings)
    assert not any("attention_residuals" in name for name in sys.modules)  # the code never ran in this process

    untrusting = open_line(str(source), RunOptions(), tmp_path / "repo.day0")
    with pytest.raises(Day0Error, match="own code"):
        untrusting.run_one("align")
