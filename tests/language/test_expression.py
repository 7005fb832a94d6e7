"""The recipe grammar: what it computes, and that everything else is refused with the expression named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.errors import Day0Error
from day0.language.config_view import ConfigView, MissingKey
from day0.language.expression import Scope

CONFIG = {
    "width": 256,
    "heads": 4,
    "layer_types": ["a", "b", "a"],
    "rope": {"theta": 1e4, "kind": None},
    "eos": [7, 8],
    "flag": False,
}


def scope(**names):
    return Scope(ConfigView(CONFIG), names)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$config.width", 256),
        ("$config.rope.theta * 2", 2e4),
        ("$config.width // config.heads", 64),
        ("$config.width / 512", 0.5),
        ("$-config.heads + 2", -2),
        ("$config.heads ** -0.5", 0.5),
        ("$layer % 2 == 1", True),
        ("$config.layer_types[layer]", "b"),
        ("$'x' if config.layer_types[layer] == 'b' else 'y'", "x"),
        ("$1 if config.flag else 0", 0),
        ("$config.rope.kind is None", True),
        ("$layer not in [1, 2]", False),
        ("$layer in config.layer_types", False),
        ("$layer > 0 and layer < 2", True),
        ("$config.flag or 3", 3),
        ("$not config.flag", True),
        ("$len(config.layer_types)", 3),
        ("$min(3, config.heads)", 3),
        ("$max(3, config.heads)", 4),
        ("$int(config.width * 0.3)", 76),
        ("$sqrt(config.width)", 16.0),
        ("$ln(1.0)", 0.0),
        ("$first(config.eos)", 7),
        ("$first(config.heads)", 4),
        ("$index(config.eos, 8)", 1),
        ("$default(config.missing, 9)", 9),
        ("$default(config.heads, 9)", 4),
        ("$default(config.missing[layer], 'd')", "d"),
        ("$repeat(['a', 'b'], 5)", ["a", "b", "a", "b", "a"]),
        ("plain text", "plain text"),
        (3.5, 3.5),
        (["$layer", {"k": "$layer + 1"}], [1, {"k": 2}]),
    ],
)
def test_values(text, value):
    assert scope(layer=1).value(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$__import__('os')", "unknown function"),
        ("$config.width.bit_length()", "outside the recipe grammar"),
        ("$(lambda: 1)()", "outside the recipe grammar"),
        ("$[x for x in config.eos]", "outside the recipe grammar"),
        ("$layer.real", "no keys"),
        ("$unknown + 1", "unknown name 'unknown'"),
        ("$config.missing", "no key 'missing'"),
        ("$1 +", "cannot parse"),
        ("$1 / 0", "0, expected a number other than 0"),
        ("$config.layer_types[9]", "layer_types is .*, expected a list with an entry 9"),
        ("$2 ** 100", "exponent"),
        ("$((10 ** 60) ** 60) ** 60", "too large"),
        ("$sqrt((10 ** 60) ** 10)", "too large"),
        ("$int((10 ** 60) ** 10)", "too large"),
        ("$(0 - 1) ** (10 ** 60 * 1e300 - 10 ** 60 * 1e300)", "expected a positive number"),
        ("$'a' * 1000", "expected a number"),
        ("$'%99999999d' % 1", "expected a number"),
        ("$[1] * 1000", "expected a number"),
        ("$repeat([1], 10000000)", "expected a whole number from 0 to"),
        ("$repeat([], 3)", "expected a list that is not empty"),
        ("$default(config.width)", "wrong number"),
        ("$len(config.eos, 2)", "wrong number"),
        ("$f'{config.width}'", "outside the recipe grammar"),
        ("$b'x'", "outside the recipe grammar"),
        ("$1 < 2 < 3", "outside the recipe grammar"),
        ("$max(a=1)", "outside the recipe grammar"),
        ("$" + "1+" * 400 + "1", "characters"),
    ],
)
def test_refused_by_name(text, words):
    with pytest.raises(Day0Error, match=words.replace("(", r"\(")) as caught:
        scope(layer=1).value(text)
    assert caught.value.hint


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_day0_error(text):
    try:
        scope(layer=0).value("$" + text)
    except Day0Error as error:
        assert error.hint


def test_reads_are_recorded_under_the_spelling_that_was_found():
    view = ConfigView(CONFIG, aliases={"hidden_size": ("width",)}, defaults={"act": "silu"})
    s = Scope(view)
    assert s.value("$config.hidden_size") == 256
    assert s.value("$config.act") == "silu"
    assert view.read == {"width": 256}
    assert view.defaulted == {"act"}
    with pytest.raises(MissingKey):
        s.value("$config.other")


def test_the_config_beats_a_default_and_the_canonical_key_beats_an_alias():
    view = ConfigView({"a": 1, "b": 2}, aliases={"a": ("b",)}, defaults={"a": 3})
    assert Scope(view).value("$config.a") == 1
