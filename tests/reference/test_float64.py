"""A reference in float64 has the checkpoint's own weights, whatever they are stored in."""

import shutil

import torch
from safetensors.torch import load_file, save_file

from day0.reference.float64 import loaded_in_float64
from day0.repo.model_repo import ModelRepo


def test_weights_stored_in_float64_are_not_rounded(tiny_repo, tmp_path):
    folder = tmp_path / "repo"
    shutil.copytree(tiny_repo("kimi_linear"), folder)
    name = "model.norm.weight"
    stored = next(path for path in folder.glob("*.safetensors") if name in load_file(path))
    tensors = load_file(stored)
    exact = tensors[name].double() + 1e-12 * torch.randn(tensors[name].shape, dtype=torch.float64)
    assert not torch.equal(exact.float().double(), exact)
    save_file({**tensors, name: exact}, stored, {"format": "pt"})
    model = loaded_in_float64(ModelRepo.open(folder))
    assert torch.equal(model.get_parameter(name), exact)
    # what the model makes by itself stays what the float32 model makes
    plain = dict(loaded_in_float64(ModelRepo.open(tiny_repo("kimi_linear"))).named_buffers())
    assert all(torch.equal(buffer, plain[at]) for at, buffer in model.named_buffers())
