"""`day0 kernels show`: what a recipe's writer learns of a kind. That it is true: tests/kernels/test_shown.py."""

import pytest

from day0.kernels.registry import kind_names
from tests.cli.run_day0 import day0


def attributes(capsys, kind):
    return {a["attribute"]: a for a in day0(capsys, "kernels", "show", kind, "--json").json["attributes"]}


def test_values_are_jsons(capsys):
    norm = attributes(capsys, "norm")
    assert norm["eps"]["decompose_tries"] == [1e-5, 1e-6, 1e-8] and norm["eps"]["type"] == "number"
    assert (norm["dim"]["required"], norm["dim"]["default"]) == (True, None)
    assert (norm["bias"]["default"], norm["bias"]["type"]) == (False, "boolean")
    assert norm["cast"]["type"] == '"before_weight" | "after_weight"'
    linear = attributes(capsys, "linear")
    assert (linear["split"]["type"], linear["split"]["default"]) == ("list of integers", [])
    assert attributes(capsys, "recurrence")["scale"]["type"] == "number | null"


@pytest.mark.parametrize("kind", kind_names())
def test_nothing_is_written_as_python_writes_it(capsys, kind):
    text = day0(capsys, "kernels", "show", kind).out
    assert not any(word in text for word in ("True", "False", "None", "typing", "NoneType", "Annotated"))


def test_a_writer_learns_what_an_attribute_means(capsys):
    assert "goes back to the activation dtype" in attributes(capsys, "norm")["cast"]["meaning"]
    text = day0(capsys, "kernels", "show", "rotary").out
    assert "`float32_tables` keeps cos and sin in float32" in text
    shown = day0(capsys, "kernels", "show", "sparse_attention").out
    assert "`rank` channels" in shown and "`width` is how many columns" in shown  # of both its classes


def test_weights_and_state_are_shown_with_where_they_are(capsys):
    shown = day0(capsys, "kernels", "show", "recurrence", "--json").json
    weights = {w["weight"]: w for w in shown["weights"]}
    assert weights["D"] == {
        "weight": "D",
        "shape": "[value_heads]",
        "where": "skip",
        "dtype": "float32",
        "meaning": "factor of the value in the output",
    }
    (state,) = shown["state"]
    assert (state["state"], state["shape"], state["kept"]) == (
        "state",
        "[value_heads, key_dim, value_dim]",
        "per_sequence",
    )
    text = day0(capsys, "kernels", "show", "linear").out
    assert any(line.split()[:4] == ["bias", "[out_features]", "bias", "activation"] for line in text.splitlines())
