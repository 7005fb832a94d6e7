"""YAML that people write: what PyYAML passes over in silence, or never comes back from, is an error with its line."""

import pytest
import yaml

from day0.artifacts.text import MAX_DEPTH, parse_json, parse_yaml
from day0.errors import Day0Error
from day0.language.recipe import read_recipe
from day0.mapping.device import read_device


def refused(text):
    with pytest.raises(Day0Error) as caught:
        parse_yaml(text, name="mine.yaml", hint="correct it")
    assert caught.value.hint == "correct it" and "\n" not in caught.value.message
    return caught.value.message


def test_plain_yaml_and_merges_are_read_as_ever():
    text = "a: &a {x: 1, y: [2, 3]}\nb: {<<: *a, x: 4}\nc: [*a, *a]\nd: {<<: [*a, {z: 5}]}\n"
    assert parse_yaml(text, name="mine.yaml", hint="") == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' stands in line 1 already"),
        ("top:\n  - {x: 1, y: 2, x: 1}\n", "line 2: the key 'x' stands in line 2 already"),
        ("a: &a {x: 1}\nb: {<<: *a, <<: *a}\n", "line 2: the key '<<'"),
    ],
)
def test_a_key_given_twice(text, words):
    assert words in refused(text)


def test_everything_users_write_is_read_so():
    for read in (read_recipe, read_device):
        with pytest.raises(Day0Error, match="mine.yaml.*line 2: the key 'paper' stands in line 1 already"):
            read("paper: a\npaper: b\n", name="mine.yaml")


@pytest.mark.parametrize(
    "deep", ["[" * 100_000, "{a: " * 50_000, "- " * 5_000 + "x", "[" * MAX_DEPTH + "{}" + "]" * 100]
)
def test_deep_nesting(deep):
    assert f"nested more than {MAX_DEPTH} levels deep" in refused(f"a:\n  {deep}")


def test_nesting_of_real_depth_is_read():
    assert parse_yaml("[" * 99 + "]" * 99, name="", hint="")


@pytest.mark.parametrize("item", ["[{}, {}, {}, {}, {}, {}, {}, {}]", "{{<<: [{}, {}, {}, {}, {}, {}, {}, {}]}}"])
def test_an_alias_bomb(item):
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} " + item.format(*[f"*a{i - 1}"] * 8) for i in range(1, 12)]
    assert "aliases make it more than" in refused("\n".join(lines))


def test_an_alias_inside_of_what_it_names():
    assert "line 1: *a stands inside" in refused("a: &a [1, *a]")


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: *b",
        "!!int x",
        "!!timestamp x",
        "2001-13-45",
        "a: \x00",
        "? [1]\n: 2",
        "- 1\n---\n- 2",
        "!!python/object:os.system {}",
        "&a !!map {a: 1, !!bool x: 2}",
    ],
)
def test_what_is_no_yaml(text):
    assert refused(text).startswith("mine.yaml is not YAML: ")


def test_json_that_no_file_can_hold_as_text_is_refused():
    with pytest.raises(Day0Error, match="config.json is not usable JSON .it holds half a character"):
        parse_json(r'{"a": ["\ud800"]}', name="config.json", hint="correct it")
    assert parse_json(r'{"a": ["\ud83d\ude00"]}', name="config.json", hint="") == {"a": ["\U0001f600"]}
