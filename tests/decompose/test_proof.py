"""Proof by value: the families' recipes are proved whole, and a wrong attribute is named with its right value."""

import json
import tempfile
from pathlib import Path

import pytest
import torch

from day0.decompose import behaviour
from day0.decompose.attribute_grid import prove_program
from day0.decompose.interpret import build_weights
from day0.language.program import apply_recipe
from day0.language.recipe import Recipe, find_recipe
from day0.reference.load import resolve_config
from day0.repo import ModelRepo

FAMILIES = ["glm5_next", "qwen4_exp", "kimi_linear", "qwen3_next", "qwen3_5", "deepseek_v32", "olmo_hybrid"]

# Of recipe operators: the attribute, a wrong value for it, and what the tiny model computes with.
WRONG = {
    "glm5_next": [
        ("input_norm", "eps", 1e-3, 1e-5),
        ("index_k_norm", "form", "rms", "layer"),
        ("delta_norm", "gate", "silu", "sigmoid"),
        ("delta_norm", "gate", "none", "sigmoid"),
        ("delta", "decay_form", "softplus", "bounded_sigmoid"),
        ("delta", "beta", "given", "sigmoid"),
        ("delta", "qk_norm_eps", 0.01, 1e-6),
        ("qkv_conv", "activation", "none", "silu"),
        ("streams", "collapse", "sum", "mean"),
        ("mixer_residual", "sinkhorn_iterations", 10, 20),
        ("indexer", "tail", False, True),
        ("attend", "scale", 0.3, 32**-0.5),
        ("experts", "renormalise_eps", 0.5, 0.0),
        ("experts", "scores", "softmax", "sigmoid"),
        ("dense_mlp", "clamp", 0.0, 1.5),
    ],
    "qwen3_5": [
        ("final_norm", "weight", "plain", "one_plus"),
        ("q_rotary", "layout", "interleaved", "half"),
        ("q_rotary", "theta", 5e5, 1e4),
        ("delta", "decay_form", "bounded_sigmoid", "softplus"),
    ],
}


class Watched:
    """A family's shrunk reference, recorded once; recipes are held against it."""

    def __init__(self, folder):
        repo = ModelRepo.open(folder)
        self.recipe = find_recipe(repo.config)
        small, model, _, self.reads = behaviour._small_reference(resolve_config(repo)[0], seed=0)
        with tempfile.TemporaryDirectory() as saved:
            model.save_pretrained(saved)
            self.repo = ModelRepo.open(Path(saved))
            self.config, self.tensors = self.repo.config, self.repo.tensors
            self.weights = {name: self.repo.read_tensor(name) for name in self.tensors}
        self.probes, _, self.notes = behaviour._record(model.double(), behaviour._tokens(small, 0), self.recipe)

    def prove(self, spoiled=(), **changes):
        """Proofs with other attributes, prove(delta=dict(beta="given")), or with the weights at these paths spoiled."""
        data = json.loads(self.recipe.model_dump_json(exclude_defaults=True))
        for operator, attributes in changes.items():
            data["operators"][operator] |= attributes
        program = apply_recipe(Recipe.model_validate(data), self.config, self.tensors)
        weights = build_weights(program, self.weights.__getitem__)
        for path in spoiled:
            noise = torch.randn(weights[path]["weight"].shape, generator=torch.Generator().manual_seed(0))
            weights[path]["weight"] = weights[path]["weight"] * (1 + 0.01 * noise)
        return prove_program(program, weights, self.probes, tolerance=behaviour.TOLERANCE)


@pytest.fixture(scope="module")
def watch(tiny_repo):
    known = {}

    def watched(family):
        if family not in known:
            known[family] = Watched(tiny_repo(family))
        return known[family]

    return watched


@pytest.mark.parametrize("family", FAMILIES)
def test_every_operator_is_proved(family, watch):
    watched = watch(family)
    proofs = watched.prove()
    assert {name for name, proof in proofs.items() if not proof.proved} == set()
    assert len(proofs) > 20
    for name, proof in proofs.items():
        assert proof.location, name
        assert len(proof.probes) == 4, "from nothing, several tokens on, and one token at a time"
        # 1e-10 is the gate; float64 leaves summation order, about 1e-15 per operator.
        assert proof.error < 1e-12, name


@pytest.mark.parametrize(("family", "wrong"), [(f, w) for f, all_wrong in WRONG.items() for w in all_wrong])
def test_a_wrong_attribute_is_named(family, wrong, watch):
    operator, attribute, bad, right = wrong
    proofs = watch(family).prove(**{operator: {attribute: bad}})
    contradicted = {name for name, proof in proofs.items() if proof.contradiction}
    assert contradicted == {operator}
    said = proofs[operator].contradiction
    assert f"{attribute} is {bad!r} in the recipe, the reference computes with {right!r}" in said
    assert not proofs[operator].proved
    # What comes after is judged on the reference's own values.
    assert {name for name, proof in proofs.items() if not proof.proved} == {operator}


def test_two_wrong_attributes_are_both_named(watch):
    proofs = watch("glm5_next").prove(input_norm=dict(eps=1e-3), delta=dict(decay_form="softplus"))
    assert {name for name, proof in proofs.items() if proof.contradiction} == {"input_norm", "delta"}


def test_what_no_attribute_explains_is_located(watch):
    """The error is the operator's own: what reads it is judged on the reference's nearest value, and proved."""
    proofs = watch("glm5_next").prove(spoiled=["layers.3.q_down"])
    assert {name for name, proof in proofs.items() if not proof.proved} == {"q_down"}
    proof = proofs["q_down"]
    assert proof.location == "layers.3.self_attn.q_a_proj:out"
    assert 1e-3 < proof.error < 1e-1
    assert "layers.3.q_down: no value tried of its attributes reproduces the reference" in proof.contradiction


def test_an_operator_that_cannot_run_is_named(watch):
    proofs = watch("glm5_next").prove(index_k_norm=dict(dim=33))
    assert proofs["index_k_norm"].contradiction.startswith("layers.3.index_k_norm: ")
    assert proofs["attend"].proved is False and proofs["q_up"].proved
