"""A checkpoint of which one tensor is wrong: that tensor is named, with its shape and the one it needs."""

import re

import pytest

from day0.decompose.tensor_audit import audit_tensors
from day0.language.program import apply_recipe
from day0.language.recipe import find_recipe
from day0.language.weights import tensor_names
from day0.repo import ModelRepo
from tests.builders.families import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_each_transposed_tensor_is_the_one_that_is_named(tiny_repo, family):
    repo = ModelRepo.open(tiny_repo(family))
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    uses = [use for use in program.uses() if use.layer in (None, 0, len(program.layers) - 1)]
    read = [name for use in uses for source in use.weights.values() for name in tensor_names(source)]
    tried = 0
    for name in dict.fromkeys(read):
        shape = repo.tensors[name].shape
        turned = shape[::-1]
        # A square one looks as before, axes of 1 say nothing about the order of numbers, and experts are alike.
        if turned == shape or sum(extent > 1 for extent in shape) < 2 or re.search(r"experts\.[1-9]", name):
            continue
        audit = audit_tensors(program, repo.tensors | {name: _shaped(repo.tensors[name], turned)}).audit
        assert audit.shape_mismatch and not audit.missing, name
        for said in audit.shape_mismatch:
            assert said.startswith(f"{name} ("), said
            assert said.endswith(f": {list(turned)}, the recipe expects {list(shape)}"), said
        tried += 1
    assert tried > 10


def test_a_missing_and_an_extra_tensor_are_named(tiny_repo):
    repo = ModelRepo.open(tiny_repo("kimi_linear"))
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    tensors = dict(repo.tensors)
    tensors["extra"] = tensors.pop("model.layers.0.self_attn.k_proj.weight")
    audit = audit_tensors(program, tensors).audit
    assert audit.missing == ("model.layers.0.self_attn.k_proj.weight",) and audit.unclaimed == ("extra",)
    assert audit.shape_mismatch == ()


def test_many_tensors_alike_are_said_once(tiny_repo):
    """Every expert of a layer has another width than the config says."""
    repo = ModelRepo.open(tiny_repo("qwen3_next"))
    config = repo.config | {"moe_intermediate_size": repo.config["moe_intermediate_size"] * 2}
    audit = audit_tensors(apply_recipe(find_recipe(config), config, repo.tensors), repo.tensors).audit
    assert len(audit.shape_mismatch) == 2 * config["num_hidden_layers"]
    assert audit.shape_mismatch[0] == (
        "model.layers.0.mlp.experts.0.gate_proj.weight and 15 more (layers.0.experts.gate_up): "
        "[64, 128], the recipe expects [128, 128]"
    )


def _shaped(header, shape):
    return type(header)(header.name, header.dtype, tuple(shape), header.file, header.start, header.end)
