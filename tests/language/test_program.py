"""Recipes: the shipped ones, the schema, and every mistake named."""

import copy
import json

import pytest
import yaml

from day0.errors import Day0Error
from day0.language.program import apply_recipe, module_pattern
from day0.language.recipe import (
    find_recipe,
    load_recipe,
    read_recipe,
    respelled,
    shipped_recipes,
    text_config,
    write_recipe,
)
from day0.language.steps import parse_step

CONFIG = {
    "model_type": "toy",
    "hidden_size": 8,
    "vocab": 32,
    "kinds": ["wide", "plain", "none"],
    "eps": [1e-5, 1e-6, 1e-6],
}
TOY = """
recipe: toy
match: {model_types: [toy], ignored: {dropout: training only}}
limits: {vocab_size: $config.vocab}
let: {width: $config.hidden_size}
model:
  takes: [token_ids]
  steps: [h = embed(token_ids), h = layers(h), "a, b = cut(h)", logits = head(h)]
  gives: [logits]
schedule:
  layers: $len(config.kinds)
  layer: layer
  slots:
    branch: {select: "$config.kinds[layer]", cases: {wide: wide, plain: narrow, none: skip}}
blocks:
  layer: {takes: [h], steps: [x = norm(h), y = branch(x), "h = add(h, y)"], gives: [h]}
  wide: {takes: [x], steps: [x = up(x), y = down(x)], gives: [y]}
operators:
  embed: {kind: embedding, vocab_size: $config.vocab, width: $width, from: "{prefix}.embed"}
  cut: {kind: linear, in_features: $width, out_features: $width, split: [2, 6], from: /cut}
  head: {kind: linear, in_features: $width, out_features: $config.vocab, from: /head}
  norm: {kind: norm, dim: $width, eps: "$config.eps[layer]", from: norm}
  up: {kind: linear, in_features: $width, out_features: $4 * width, from: "up_{weight}"}
  down: {kind: linear, in_features: $4 * width, out_features: $width}
  narrow: {kind: linear, in_features: $width, out_features: $width, from: mlp}
  add: {kind: residual_mix, scheme: add, width: $width}
weights:
  prefix: [wrapper.model, model]
  map: {down.weight: {transpose: "{here}.down"}}
  float32: [norm.weight]
left_out: [{pattern: "{prefix}.layers.{layers}.*", reason: draft block}]
"""


def toy(**changes):
    """The toy recipe with dotted keys changed; None deletes."""
    data = yaml.safe_load(TOY)
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        place = data
        for part in path:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return read_recipe(yaml.safe_dump(data), name="toy")


def test_a_recipe_becomes_operators_per_layer_with_weights():
    program = apply_recipe(toy(), CONFIG, {"wrapper.model.embed.weight"})
    assert [layer.slots for layer in program.layers] == [{"branch": "wide"}, {"branch": "narrow"}, {"branch": "skip"}]
    assert [sorted(layer.operators) for layer in program.layers] == [
        ["add", "down", "norm", "up"],
        ["add", "narrow", "norm"],
        ["add", "norm"],
    ]
    assert program.layers[0].operators["norm"].attributes.eps == 1e-5
    assert program.layers[1].operators["norm"].attributes.eps == 1e-6
    assert program.outer["embed"].weights == {"weight": "wrapper.model.embed.weight"}
    assert program.outer["head"].weights == {"weight": "head.weight"}
    first = program.layers[0].operators
    assert first["norm"].weights == {"weight": "wrapper.model.layers.0.norm.weight"}
    assert first["up"].weights == {"weight": "wrapper.model.layers.0.up_weight"}
    assert first["down"].weights == {"weight": {"transpose": "wrapper.model.layers.0.down"}}
    assert first["norm"].float32 == {"weight"} and first["up"].float32 == set()
    assert first["norm"].path == "layers.0.norm" and program.outer["head"].path == "head"
    assert program.left_out == {"wrapper.model.layers.3.*": "draft block"}
    assert set(program.reads) == {"hidden_size", "vocab", "kinds", "eps"}
    assert [layer.describe() for layer in program.layers] == ["wide", "narrow", "layer"]
    assert program.uses()[0].name == "embed" and program.uses()[-1].path == "layers.2.add"


def test_the_first_prefix_that_a_tensor_has_is_taken_else_the_first():
    assert apply_recipe(toy(), CONFIG, {"model.embed.weight"}).outer["embed"].weights["weight"] == "model.embed.weight"
    assert apply_recipe(toy(), CONFIG).outer["embed"].weights["weight"] == "wrapper.model.embed.weight"


def test_layers_can_be_cut():
    cut = apply_recipe(toy(), CONFIG, layers=1)
    assert len(cut.layers) == 1
    assert cut.left_out == {"wrapper.model.layers.3.*": "draft block"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(operators__norm__epsilon=1e-5), "operator norm.*epsilon"),
        (dict(operators__norm__dim="$config.nope"), "operator norm: dim: .*nope"),
        (dict(operators__norm__dim="8"), "operator norm.*dim"),
        (dict(operators__norm__kind="normal"), "unknown kind 'normal'"),
        (dict(operators__extra={"kind": "norm", "dim": 8, "eps": 0.1, "from": "x"}), "no step uses: extra"),
        (dict(operators__branch={"kind": "norm", "dim": 8, "eps": 0.1}), "'branch' is used twice"),
        (dict(operators__narrow={"kind": "linear", "in_features": 8, "out_features": 8}), "narrow.weight"),
        (dict(blocks__layer__steps=["y = branch(h)", "h = add(h, z)"]), "'z' has no value yet"),
        (dict(blocks__layer__steps=["x = norm(h)", "h = add(h)"]), "takes 2 to 2 values"),
        (dict(blocks__layer__steps=["x, z = norm(h)", "h = add(h, x)"]), "gives 1"),
        (dict(blocks__layer__steps=["x = norm.pre(h)", "h = add(h, x)"]), "no method 'pre'"),
        (dict(blocks__layer__steps=["x, mix = add.pre(h)", "h = add(h, x)"]), "scheme add, .* has no method 'pre'"),
        (dict(blocks__layer__steps=["x = nothing(h)", "h = add(h, x)"]), "nothing is called 'nothing'"),
        (dict(blocks__wide__gives=["z"]), "gives 'z'"),
        (dict(schedule__layer="lair"), "'lair', which is not defined"),
        (dict(schedule__slots__branch__cases={"wide": "wide"}), "branch at layer 1: no case for 'plain'"),
        (dict(schedule__slots__branch__cases={"wide": "wide", "plain": "w", "none": "skip"}), "'w' is no block"),
        (dict(weights__map={"down.wait": "x", "down.weight": "y", "gone.weight": "z"}), "'gone.weight' is no operator"),
        (dict(weights__map={"down.weight": {"twist": "x"}}), "twist"),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises(Day0Error, match=words) as caught:
        apply_recipe(toy(**changes), CONFIG)
    assert caught.value.message.startswith("recipe toy: ") and caught.value.hint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(operators__norm={"dim": 8}), "norm has no kind"),
        (dict(blocks__layer__steps=["h = f(g(h))"]), "not a step"),
        (dict(blocks__layer__steps=["h = norm(batch)"]), "reserved name 'batch'"),
        (dict(extra=1), "extra"),
        (dict(match__model_types=None), "model_types"),
        (dict(schedule__slots__branch__default="x"), "default"),
    ],
)
def test_the_schema_refuses(changes, words):
    with pytest.raises(Day0Error, match=words):
        toy(**changes)


@pytest.mark.parametrize("text", ["a: [", "- 1", "recipe: 3"])
def test_what_is_no_recipe_is_refused(text):
    with pytest.raises(Day0Error, match="bad"):
        read_recipe(text, name="bad")


def test_steps():
    step = parse_step(" x ,  mix = r.pre( h , y ) ")
    assert (step.targets, step.callee, step.method, step.arguments) == (("x", "mix"), "r", "pre", ("h", "y"))
    assert str(step) == "x, mix = r.pre(h, y)"
    assert parse_step("x = start()").arguments == ()
    for bad in ("x", "x = 1", "x = a.b.c(h)", "x = f(h) + 1", "X = f(h)", "x = f(1)", "x = f(h,)", "= f(h)"):
        with pytest.raises(Day0Error, match="not a step"):
            parse_step(bad)


def test_module_patterns():
    assert module_pattern("self_attn.q", "weight") == "{here}.self_attn.q.weight"
    assert module_pattern("hc_{weight}", "fn") == "{here}.hc_fn"
    assert module_pattern("{prefix}.norm", "weight") == "{prefix}.norm.weight"
    assert module_pattern("/lm_head", "weight") == "lm_head.weight"


def test_shipped_recipes_round_trip_and_are_found_by_their_model_types():
    for name, recipe in shipped_recipes().items():
        assert read_recipe(write_recipe(recipe), name=name) == recipe
        for model_type in recipe.match.model_types:
            assert find_recipe({"model_type": model_type}) == recipe
        json.dumps(type(recipe).model_json_schema())
    assert find_recipe({"model_type": "unheard_of"}) is None
    with pytest.raises(Day0Error, match="no recipe 'nope'") as caught:
        load_recipe("nope")
    assert all(name in caught.value.hint for name in shipped_recipes())


def test_a_recipe_file_is_read_by_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(TOY)
    assert load_recipe(str(path)).recipe == "toy"
    with pytest.raises(Day0Error, match="cannot read recipe"):
        load_recipe(str(tmp_path / "absent.yaml"))


def test_the_text_config_of_a_wrapper_is_used_where_there_is_one():
    wrapped = toy(match={"model_types": ["toy"], "text_config": "text_config"})
    config = {"model_type": "toy", "text_config": copy.deepcopy(CONFIG)}
    assert text_config(wrapped, config) == CONFIG
    assert text_config(wrapped, CONFIG) == CONFIG
    assert len(apply_recipe(wrapped, config).layers) == 3


def test_values_are_respelled_for_other_transformers_versions():
    config = {"model_type": "glm5_next", "text_config": {"layer_types": ["linear_attention", "indexed_attention"]}}
    (other,) = respelled(config)
    assert other["text_config"]["layer_types"] == ["linear_attention", "deepseek_sparse_attention"]
    assert respelled(other) == [config]
    assert respelled({"model_type": "unheard_of", "layer_types": ["indexed_attention"]}) == []


@pytest.mark.parametrize(
    ("chat", "what"),
    [
        ({"reasoning": {"start": "", "end": "</r>"}}, "at least 1 character"),
        ({"reasoning": {"start": "<r>", "end": "<r>"}}, "part of another"),
        ({"reasoning": {"start": "<r>", "end": "<r>\n"}}, "part of another"),
        ({"reasoning": {"start": "<r>", "end": "\n</r>"}}, "white space"),
        ({"tool_calls": {"start": "<c>", "end": "</c>", "forms": []}}, "at least 1 item"),
        ({"tool_calls": {"start": "<c>", "end": "</c>", "forms": ["yaml"]}}, "json"),
        (
            {
                "reasoning": {"start": "<r>", "end": "</r>"},
                "tool_calls": {"start": "<c>", "end": "</r>", "forms": ["json"]},
            },
            "part of another",
        ),
        ({"stop": ["x"]}, "Extra inputs"),
    ],
)
def test_markers_that_could_not_be_told_apart_are_refused(chat, what):
    with pytest.raises(Day0Error, match="chat") as refused:
        read_recipe(yaml.safe_dump(yaml.safe_load(TOY) | {"chat": chat}), name="toy.yaml")
    assert what in refused.value.message


def test_a_recipe_keeps_how_answers_are_written():
    chat = {"reasoning": {"start": "<r>", "end": "</r>"}}
    recipe = read_recipe(yaml.safe_dump(yaml.safe_load(TOY) | {"chat": chat}), name="toy.yaml")
    assert recipe.chat.reasoning.end == "</r>" and recipe.chat.tool_calls is None
    assert read_recipe(write_recipe(recipe), name="again") == recipe
