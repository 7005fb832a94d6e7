import dataclasses

import pytest

from day0.artifacts.contract import Clause, Contract, MultipleOf, OneOf
from day0.kernels.interface.kind import Implementation
from day0.kernels.registry import get_kind, kind_names
from day0.mapping import choose as choosing
from day0.mapping.choose import PHASES, Target, by_preference, choose, contract_facts, switch_rule
from day0.mapping.device import load_device
from day0.mapping.options import MapOptions
from tests.mapping.inventories import operator

NORM = {"dim": 96, "eps": 1e-6}
FUSED = Contract(
    "norm",
    "fused",
    (
        Clause("dim", "attribute", "dim", MultipleOf(64), "a tile is 64 wide"),
        Clause("dtype", "dtype", "activation", OneOf(("bfloat16",)), "it loads bfloat16"),
        Clause("triton", "device", "triton", OneOf((True,)), "it is written in Triton"),
        Clause("phase", "phase", "phase", OneOf(("prefill", "decode")), "it commits nothing"),
    ),
)


def target(device="h200", dtype="bfloat16"):
    return Target(load_device(device), dtype, MapOptions())


def reference_only(name="norm"):
    """A kind as it is before it has any kernel of ours."""
    kind = get_kind(name)
    return dataclasses.replace(kind, implementations=kind.implementations[:1])


@pytest.fixture
def norm_without_kernels(monkeypatch):
    monkeypatch.setattr(choosing, "get_kind", reference_only)


@pytest.fixture
def norm_with_a_fused_kernel(monkeypatch):
    norm = reference_only()
    fused = dataclasses.replace(
        norm, implementations=(*norm.implementations, Implementation("fused", "nowhere", FUSED))
    )
    monkeypatch.setattr(choosing, "get_kind", lambda name: fused)


def test_with_references_alone_the_plan_says_so(norm_without_kernels):
    for line in choose(operator("n", "norm", NORM), target()):
        assert line.implementation == "torch" and line.fallback and not line.refusals
        assert line.reason == "no fused kernel for this kind yet; the PyTorch reference stands in"


def test_an_accepting_fused_kernel_comes_first(norm_with_a_fused_kernel):
    prefill, decode, verify = choose(operator("n", "norm", {**NORM, "dim": 128}), target())
    assert (prefill.implementation, prefill.fallback, prefill.refusals) == ("fused", False, ())
    assert decode.implementation == "fused"
    assert verify.implementation == "torch" and verify.fallback
    assert verify.refusals == ("norm/fused.phase: verify not in {prefill, decode}",)
    assert "it commits nothing" in verify.reason


def test_every_refusal_names_its_contract_line(norm_with_a_fused_kernel):
    line = choose(operator("n", "norm", NORM), target("cpu", "float32"))[0]
    assert line.implementation == "torch"
    assert line.refusals == (
        "norm/fused.dim: 96 is no positive multiple of 64",
        "norm/fused.dtype: float32 not in {bfloat16}",
        "norm/fused.triton: false not in {true}",
    )
    assert line.reason == "no fused kernel accepts it (it is written in Triton); the PyTorch reference stands in"
    line = choose(operator("n", "norm", NORM), target("h200", "float32"))[0]
    assert line.reason.startswith("no fused kernel accepts it (a tile is 64 wide; it loads bfloat16); ")


def test_what_even_the_reference_refuses_cannot_be_run(norm_without_kernels):
    line = choose(operator("n", "norm", {"dim": 0, "eps": 1e-6}), target())[0]
    assert line.implementation == "none" and not line.fallback and "day0 cannot run it yet" in line.reason
    assert line.refusals == ("norm/torch.dim: 0 is outside 1 <= value",)


@pytest.mark.parametrize("name", ["Linear", "linear"])  # a class named like a kind is none
def test_a_module_of_no_kind_cannot_be_run(name):
    module = operator("odd", name, {}, status="new")
    lines = choose(module, target())
    assert [line.phase for line in lines] == list(PHASES)
    assert all(line.implementation == "none" and not line.fallback for line in lines)
    reason = f"module {name}: no recipe says which kind it is: day0 cannot run it yet"
    assert all(line.reason == reason for line in lines) and switch_rule(module) is None


def test_special_forms_of_the_pytorch_reference_are_fallbacks_too(monkeypatch):
    norm = reference_only()
    only_prefill = Contract("norm", "torch_fast", (Clause("p", "phase", "phase", OneOf(("prefill",)), "why not"),))
    forms = (*norm.implementations, Implementation("torch_fast", "nowhere", only_prefill))
    monkeypatch.setattr(choosing, "get_kind", lambda name: dataclasses.replace(norm, implementations=forms))
    prefill, decode, _ = choose(operator("n", "norm", NORM), target())
    assert (prefill.implementation, decode.implementation) == ("torch_fast", "torch")
    assert prefill.fallback and decode.fallback
    assert decode.reason == "no fused kernel for this kind yet; the PyTorch reference stands in"


def test_preference_keeps_the_kinds_own_order_within_a_group():
    norm = get_kind("norm")
    named = [Implementation(n, "nowhere", Contract("norm", n)) for n in ("torch", "b", "torch_x", "a")]
    ordered = by_preference(dataclasses.replace(norm, implementations=tuple(named)))
    assert [i.name for i in ordered] == ["b", "a", "torch_x", "torch"]


def test_facts_answer_every_clause_there_is():
    """A clause that asks for a fact nobody gives would end `day0 map` for a whole family."""
    for name in kind_names():
        kind = get_kind(name)
        attributes = kind.attributes.model_construct(**{field: 1 for field in kind.attributes.model_fields})
        for implementation in kind.implementations:
            facts = contract_facts(attributes, target(), "decode")
            for clause in implementation.contract.clauses:
                assert clause.fact in facts[clause.subject], f"{name}/{implementation.name}.{clause.id}"


def test_facts_differ_by_phase_and_device():
    attributes = get_kind("norm").parse(NORM)
    decode = contract_facts(attributes, target(), "decode")
    assert decode["shape"] == {"page_tokens": 64, "tokens_per_sequence": 1}
    assert contract_facts(attributes, target(), "verify")["shape"]["tokens_per_sequence"] == 8
    assert contract_facts(attributes, target(), "prefill")["shape"]["tokens_per_sequence"] == 8192
    assert decode["device"] == {"type": "cuda", "name": "h200", "capability": 9.0, "triton": True}
    assert contract_facts(attributes, target("cpu"), "decode")["device"]["capability"] == 0.0


def test_switch_rule_comes_from_the_kind(monkeypatch):
    assert switch_rule(operator("n", "norm", NORM)) is None
    assert switch_rule(operator("odd", "", {}, status="new")) is None
    declared = dataclasses.replace(get_kind("norm"), switch=lambda a: f"context <= {a.dim}")
    monkeypatch.setattr(choosing, "get_kind", lambda name: declared)
    assert switch_rule(operator("n", "norm", NORM)) == "context <= 96"
