"""What a plan for a GPU does elsewhere: the reference stands in and says for what; each operator knows the phase."""

import pytest
import torch

from day0.artifacts.base import Provenance
from day0.artifacts.contract import Clause, Contract, OneOf
from day0.engine.package import facts_here, load_package
from day0.engine.runner import Runner
from day0.generate.stage import Options, run
from day0.kernels.interface.kind import Implementation
from day0.kernels.registry import get_kind
from day0.repo.model_repo import ModelRepo
from tests.generate import toy


@pytest.fixture
def toy_model(tmp_path):
    repo = ModelRepo.open(toy.write_repo(tmp_path / "toy"))
    inventory = toy.inventory(toy.write_recipe_file(tmp_path))
    by = Provenance(day0_version="0", model_hash="0")
    made = run(repo, inventory, toy.plan(), tmp_path / "ws", Options(), by)
    return load_package(made.folder, repo, dtype=torch.float64)


def fused_norm(monkeypatch, *clauses):
    kind = get_kind("norm")
    one = Implementation("made_up", "day0.kernels.norm.reference", Contract("norm", "made_up", clauses))
    monkeypatch.setattr(type(kind), "implementation", lambda self, name: one)


def test_an_implementation_that_refuses_dtype_or_device_is_stood_in_for(monkeypatch, toy_model):
    on_gpu = Clause("device", "device", "type", OneOf(("cuda",)), "it needs a GPU")
    narrow = Clause("dtype", "dtype", "activation", OneOf(("bfloat16",)), "it is narrow")
    fused_norm(monkeypatch, on_gpu, narrow)
    plan = {"norm": {"prefill": "made_up", "decode": "made_up"}}
    toy_model.choose(plan, facts_here(torch.bfloat16, "cpu"))
    norms = [operator for operator in toy_model.operators() if operator.kind == "norm"]
    assert len(norms) > 1 and all(o.implementations == {"prefill": "torch", "decode": "torch"} for o in norms)
    assert toy_model.stood_in() == {"it needs a GPU": len(norms)}

    fused_norm(monkeypatch, narrow)
    toy_model.choose(plan, facts_here(torch.float32, "cpu"))
    assert toy_model.stood_in() == {"it is narrow": len(norms)}
    toy_model.choose(plan, facts_here(torch.bfloat16, "cpu"))
    assert toy_model.stood_in() == {} and norms[0].implementations["decode"] == "made_up"
    toy_model.choose({})
    assert norms[0].implementations == {}


def test_operators_without_a_batch_know_the_phase(toy_model):
    seen = []
    for operator in toy_model.operators():
        operator.register_forward_hook(lambda module, *_: seen.append((module.kind, module.phase)))
    runner = Runner(toy_model, sequences=1, tokens=16)
    slot, _ = runner.prefill([1, 2, 3], chunks=[3])
    assert {phase for _, phase in seen} == {"prefill"} and ("norm", "prefill") in seen
    seen.clear()
    Runner(toy_model, sequences=1, tokens=16).greedy([1, 2, 3], count=3)
    assert ("norm", "decode") in seen and ("linear", "decode") in seen and ("norm", "prefill") in seen


def test_figures_made_with_a_stand_in_carry_it(monkeypatch, toy_model):
    fused_norm(monkeypatch, Clause("device", "device", "type", OneOf(("cuda",)), "it needs a GPU"))
    toy_model.choose({"norm": {"decode": "made_up"}}, facts_here(torch.float32, "cpu"))
    assert toy_model.stand_in_labels() == ["PyTorch in place of the plan's kernels of 3 operators: it needs a GPU"]
