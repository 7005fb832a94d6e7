"""What keeps decompose from holding although every operator is known."""

import shutil

import torch
from safetensors.torch import load_file, save_file

from day0 import decompose
from day0.artifacts.base import Provenance
from day0.repo import ModelRepo


def test_a_tensor_that_no_operator_claims(tiny_repo, tmp_path):
    folder = tmp_path / "repo"
    shutil.copytree(tiny_repo("kimi_linear"), folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.layers.0.extra.weight": torch.ones(3)}, folder / "model.safetensors")
    found = decompose.run(ModelRepo.open(folder), decompose.Options(), Provenance(day0_version="0", model_hash="0"))
    assert found.tensor_audit.unclaimed == ("model.layers.0.extra.weight",)
    assert {o.evidence.established for o in found.operators} == {"proved"} and not found.holds
