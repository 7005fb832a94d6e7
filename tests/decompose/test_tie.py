"""tie_word_embeddings against the tensors of the checkpoint."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from day0.artifacts.base import Provenance
from day0.decompose.config_audit import audit_config
from day0.decompose.stage import Options, run
from day0.decompose.tie import TIE, tie_fault
from day0.language.program import apply_recipe
from day0.language.recipe import find_recipe
from day0.repo import ModelRepo

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def written(tiny_repo, tmp_path):
    def write(tie, head):
        """A repo whose config says `tie`; its output table is "apart", "equal" or "absent"."""
        folder = tmp_path / "repo"
        shutil.copytree(tiny_repo("qwen3_5"), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {TIE: tie}))
        tensors = load_file(folder / "model.safetensors")
        if head == "absent":
            del tensors[HEAD]
        elif head == "equal":
            tensors[HEAD] = tensors[EMBED].clone()
        save_file(tensors, folder / "model.safetensors")
        return folder

    return write


@pytest.mark.parametrize(
    ("tie", "head", "fault"),
    [
        (True, "apart", f"true, but {HEAD} stands beside {EMBED}, which differs"),
        (True, "equal", ""),
        (True, "absent", ""),
        (False, "apart", ""),
        (False, "absent", f"false, but the checkpoint holds {EMBED} only"),
        (None, "apart", ""),
    ],
)
def test_the_config_is_held_against_the_tensors(written, tie, head, fault):
    repo = ModelRepo.open(written(tie, head))
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    assert tie_fault(repo, program) == (fault, True)
    keys, warnings = audit_config(repo.config, program, tie=(fault, True))
    (key,) = [k for k in keys if k.key == TIE]
    assert (key.audit == "contradicted") == bool(fault)
    assert [w for w in warnings if TIE in w] == ([f"config key {TIE}: {fault}"] if fault else [])


def test_a_wrapper_may_leave_it_to_its_text_config(written):
    folder = written(False, "absent")
    config = json.loads((folder / "config.json").read_text())
    wrapper = {"model_type": "qwen3_5", "text_config": config}
    assert find_recipe(wrapper).match.text_config == "text_config"
    (folder / "config.json").write_text(json.dumps(wrapper))
    repo = ModelRepo.open(folder)
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    fault, certain = tie_fault(repo, program)
    assert fault and certain
    keys, warnings = audit_config(repo.config, program, tie=(fault, certain))
    assert [k.key for k in keys if k.audit == "contradicted"] == [f"text_config.{TIE}"]
    assert [w for w in warnings if TIE in w] == [f"config key text_config.{TIE}: {fault}"]


def test_decompose_does_not_hold_then(written):
    found = run(ModelRepo.open(written(True, "apart")), Options(), Provenance(day0_version="0", model_hash="0"))
    assert not found.holds and [k.key for k in found.config_audit if k.audit == "contradicted"] == [TIE]
    assert len(found.faults) == 1 and found.faults[0].startswith(f"config key {TIE}: ")


def test_tensors_that_are_not_at_hand_are_not_compared(written):
    repo = ModelRepo.open(written(True, "apart"), headers_only=True)
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    fault, certain = tie_fault(repo, program)
    assert "which may differ" in fault and not certain
    keys, warnings = audit_config(repo.config, program, tie=(fault, certain))
    assert [k.audit for k in keys if k.key == TIE] == ["ignored"] and any(fault in w for w in warnings)
