"""A config that is wrong in one key: for every recipe and every key it reads, the error names the key and its value.

Which values are right for a key follows from what its recipe does with it, so only what no model has is held to be
refused; the rest gives a model, or an error in the same words.
"""

import copy
import re

import pytest

from day0.errors import Day0Error
from day0.language.config_view import shown
from day0.language.program import apply_recipe
from day0.language.recipe import find_recipe, shipped_recipes, text_config
from day0.repo import ModelRepo
from tests.builders.families import FAMILIES
from tests.decompose.remote_repo import write_remote_repo

ABSENT = "no such key"
WRONG = [ABSENT, None, "x", "7", [], [1], {}, True, -1, 0, 1.5]
# What says that Python, or a library, was speaking.
PYTHON = re.compile(
    r"\b\w+(Error|Exception)\b|NoneType|\bNone\b|\bTrue\b|\bFalse\b|Traceback|'(str|int|float|list|dict|bool)'"
    r"|object is|argument|invalid literal|Input should|Value error|unsupported|must be real|pydantic|<.*>"
)


@pytest.fixture(scope="module")
def models(tiny_repo, tmp_path_factory):
    """Recipe name -> the recipe, a config, and the names of the tensors in a checkpoint."""
    folders = [*map(tiny_repo, FAMILIES), write_remote_repo(tmp_path_factory.mktemp("remote") / "repo")]
    repos = [ModelRepo.open(folder) for folder in folders]
    recipes = [find_recipe(repo.config) for repo in repos]
    return {
        recipe.recipe: (recipe, repo.config, frozenset(repo.tensors))
        for recipe, repo in zip(recipes, repos, strict=True)
    }


def changed(recipe, config, key, value):
    """The config with `key` of its text model changed."""
    config = copy.deepcopy(config)
    *path, last = key.split(".")
    place = text_config(recipe, config)
    for part in path:
        place = place[part]
    if value == ABSENT:
        del place[last]
    else:
        place[last] = value
    return config


def fault(model, key, value):
    """The error of the model with one key changed, "" when it is none."""
    recipe, config, tensors = model
    try:
        apply_recipe(recipe, changed(recipe, config, key, value), tensors)
    except Day0Error as error:
        assert error.hint and not PYTHON.search(error.hint)
        return error.message
    return ""


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_key_of_every_recipe(models, name):
    recipe, config, tensors = models[name]
    keys = apply_recipe(recipe, config, tensors).reads
    assert len(keys) > 8
    for key in keys:
        for value in WRONG:
            said = fault(models[name], key, value)
            if not said:
                continue
            assert not PYTHON.search(said) and "\n" not in said, (key, value, said)
            # A model may do without the key, and then lack another; a list's length is held against the layers.
            if value != ABSENT and not isinstance(value, list):
                assert f"{key} is {shown(value)}" in said or f"{key} = {shown(value)}" in said, (key, value, said)


@pytest.mark.parametrize("name", shipped_recipes())
@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"])
def test_a_size_is_a_positive_whole_number(models, name, key):
    for value in WRONG:
        assert fault(models[name], key, value), value
    assert f"no key '{key}'" in fault(models[name], key, ABSENT)


@pytest.mark.parametrize("name", shipped_recipes())
def test_an_eps_is_a_number_that_is_not_negative(models, name):
    for value in [ABSENT, None, "x", [], {}, True, -1]:
        assert fault(models[name], "rms_norm_eps", value), value


@pytest.mark.parametrize("types", [["linear_attention"], ["linear_attention"] * 7, []])
def test_more_or_fewer_layer_types_than_layers(models, types):
    by_layer = [name for name, recipe in shipped_recipes().items() if "config.layer_types[layer]" in str(recipe)]
    assert len(by_layer) > 4
    for name in by_layer:
        said = fault(models[name], "layer_types", types)
        assert said == f"recipe {name}: layer_types has {len(types)} entries for 4 layers (num_hidden_layers)"


def test_fewer_layers_than_layer_types(models):
    assert "layer_types has 4 entries for 3 layers (num_hidden_layers)" in fault(
        models["qwen3_next"], "num_hidden_layers", 3
    )
    assert "layer_types has 4 entries for 5 layers (num_hidden_layers)" in fault(
        models["qwen3_next"], "num_hidden_layers", 5
    )


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_a_text_config_that_is_none(models, value):
    recipe, config, tensors = models["glm5_next"]
    with pytest.raises(Day0Error) as caught:
        apply_recipe(recipe, config | {"text_config": value}, tensors)
    assert caught.value.message == f"recipe glm5_next: text_config is {shown(value)}, expected an object"


def test_a_wrapper_without_its_text_config(models):
    recipe, config, tensors = models["glm5_next"]
    with pytest.raises(Day0Error, match="no key 'hidden_size', nor a 'text_config' that would hold it"):
        apply_recipe(recipe, {k: v for k, v in config.items() if k != "text_config"}, tensors)


def test_a_number_of_layers_out_of_bounds_is_refused_at_once(models):
    assert "num_hidden_layers = 1000000000" in fault(models["deepseek_v32"], "num_hidden_layers", 10**9)
    assert "n_routed_experts = 1000000000" in fault(models["deepseek_v32"], "n_routed_experts", 10**9)


def test_null_where_a_recipe_has_a_default_is_that_default(models):
    recipe, config, tensors = models["olmo_hybrid"]
    program = apply_recipe(recipe, config, tensors)
    assert apply_recipe(recipe, config | {"head_dim": None}, tensors).uses() == program.uses()
