"""One deliberately wrong attribute is caught by exactness, and named with its operator and layer.

`make test` tries one or two attributes of each kind on one family; `make verify` tries all of them on every family.
"""

import pytest
import torch

from day0.align.exactness import Expected, check_exactness
from day0.align.prompts import random_prompts
from day0.align.training_side import as_reference
from day0.engine.package import load_package
from day0.kernels.registry import kind_names
from day0.language.program import apply_recipe
from day0.language.recipe import shipped_recipes
from day0.reference.float64 import loaded_in_float64
from day0.repo.model_repo import ModelRepo

from ..builders.families import FAMILIES
from .mutations import UNSEEN, Mutation, mutated, mutations, try_mutation, unseen_because
from .packages import package_of, recipe_of, write_program

SHIPPED = [name for name in FAMILIES if name in shipped_recipes()]

FEW = [
    Mutation("embed", "embedding", "scale", 1.25),
    Mutation("input_norm", "norm", "eps", 1e-8),
    Mutation("input_norm", "norm", "weight", "one_plus"),
    Mutation("qkv_conv", "causal_conv", "activation", "none"),
    Mutation("delta", "recurrence", "qk_norm", "none"),
    Mutation("kv_norm", "norm", "form", "layer"),
    Mutation("attend", "attention", "scale", 0.1),
    Mutation("mixer_add", "residual_mix", "multiplier", 1.25),
    Mutation("dense_mlp", "mlp", "activation", "gelu_tanh"),
    Mutation("experts", "moe", "scores", "softmax"),
    Mutation("experts", "moe", "routed_scale", 1.0),
]


@pytest.mark.parametrize("mutation", FEW, ids=str)
def test_a_wrong_attribute_is_named(exact_package, expected, mutation):
    outcome = try_mutation(exact_package, expected[1:], mutation)
    assert outcome.result == "named", f"{outcome.result}: {outcome.first_bad} {outcome.detail}"


def test_a_wrong_attribute_in_the_recipe_is_named_with_its_layer(repo, tmp_path, expected):
    recipe = recipe_of(repo)
    wrong = {**recipe.operators, "kv_norm": {**recipe.operators["kv_norm"], "eps": 1e-3}}
    program = apply_recipe(recipe.model_copy(update={"operators": wrong}), repo.config, repo.tensors)
    package = load_package(write_program(program, repo, tmp_path / "package"), repo, dtype=torch.float64)
    bad = check_exactness(package, expected[:1]).first_bad
    assert (bad.layer, bad.operator, bad.kind) == (3, "kv_norm", "norm")


def test_a_mutated_package_is_itself_again_afterwards(exact_package):
    before = {op.name: op.attributes for op in exact_package.operators()}
    with mutated(exact_package, FEW[1]):
        assert {op.name: op.attributes for op in exact_package.operators()} != before
    assert {op.name: op.attributes for op in exact_package.operators()} == before


def test_every_attribute_with_other_values_is_mutated(exact_package):
    """A kind's own list of alternatives is tried whole."""
    found = {(m.kind, m.attribute) for m in mutations(exact_package)}
    for operator in exact_package.operators():
        for attribute, values in type(operator.attributes).alternatives().items():
            if any(v != getattr(operator.attributes, attribute) for v in values) and attribute in ("eps", "activation"):
                assert (operator.kind, attribute) in found


@pytest.mark.verify
@pytest.mark.parametrize("family", SHIPPED)
def test_every_attribute_of_every_kind(family, tiny_repo, tmp_path):
    repo = ModelRepo.open(tiny_repo(family))
    package = package_of(repo, tmp_path / "package")
    reference = as_reference(loaded_in_float64(repo), torch.float64)
    prompt = random_prompts(package.layout().vocab_size, (258,))[1]
    expected = [Expected.of(reference, prompt)]
    outcomes = [try_mutation(package, expected, mutation) for mutation in mutations(package)]
    assert {o.mutation.kind for o in outcomes} <= set(kind_names())
    wrong = [f"{o.mutation}: blamed on {o.first_bad}" for o in outcomes if o.result == "misnamed"]
    unseen = [o.mutation for o in outcomes if o.result == "silent"]
    wrong += [f"{m}: not seen" for m in unseen if not unseen_because(package, m, family)]
    seen = [o.mutation for o in outcomes if o.result == "named"]
    excused = {m: excuse for m in seen if (excuse := unseen_because(package, m, family))}
    wrong += [f"{m}: seen, so it needs no excuse" for m, excuse in excused.items() if not excuse.by_chance]
    assert not wrong, "\n".join(wrong)
    assert sum(o.result == "named" for o in outcomes) > len(outcomes) / 3


@pytest.mark.verify
def test_every_excuse_is_needed_somewhere(tiny_repo, tmp_path):
    needed = set()
    for family in SHIPPED:
        package = package_of(ModelRepo.open(tiny_repo(family)), tmp_path / family)
        excused = (m for m in mutations(package) if unseen_because(package, m, family))
        needed |= {(mutation.kind, mutation.attribute) for mutation in excused}
    assert needed == set(UNSEEN)
