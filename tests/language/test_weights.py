"""Weight sources: resolving patterns, and building tensors from what they resolve to."""

import pytest
import torch

from day0.errors import Day0Error
from day0.kernels.interface.kind import Weight
from day0.kernels.interface.package import read_weight
from day0.kernels.interface.weight_map import build, built_shape, misfits, tensors_read
from day0.language.config_view import ConfigView
from day0.language.expression import Scope
from day0.language.weights import describe, resolve_source, tensor_names

SCOPE = Scope(ConfigView({"n": 2, "d": 3, "word": "two"}))
NAMES = {"prefix": "model", "here": "model.layers.4", "layer": 4}
TENSORS = {
    "model.layers.4.a": torch.arange(12.0).reshape(6, 2),
    "model.layers.4.b": torch.arange(12.0, 24.0).reshape(6, 2),
    "model.layers.4.e.0.w": torch.full((2, 3), 0.5),
    "model.layers.4.e.1.w": torch.full((2, 3), 1.5),
}
A, B = TENSORS["model.layers.4.a"], TENSORS["model.layers.4.b"]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{here}.a", A),
        ({"concat": ["{here}.a", "{here}.b"]}, torch.cat([A, B])),
        ({"concat": ["{here}.a", "{here}.b"], "dim": 1}, torch.cat([A, B], 1)),
        (
            {"stack": "{here}.e.{expert}.w", "count": "$config.n"},
            torch.tensor([0.5, 1.5]).reshape(2, 1, 1).expand(2, 2, 3),
        ),
        (
            {"concat_each": "{here}.e.{part}.w", "count": 2},
            torch.tensor([0.5] * 2 + [1.5] * 2).reshape(4, 1).expand(4, 3),
        ),
        ({"split": "{here}.a", "sizes": [1, 5], "take": 1}, A[1:]),
        ({"split": "{here}.a", "sizes": [1, 1], "take": 0, "dim": 1}, A[:, :1]),
        ({"groups": "{here}.a", "count": "$config.n", "sizes": [1, 2], "take": 0}, A[[0, 3]]),
        ({"groups": "{here}.a", "count": 2, "sizes": [1, 2], "take": 1}, A[[1, 2, 4, 5]]),
        ({"transpose": "{here}.a"}, A.T),
        ({"reshape": "{here}.a", "shape": ["$config.d", 4]}, A.reshape(3, 4)),
        ({"first_of": ["{here}.missing", "{here}.b"]}, B),
        ({"first_of": [{"concat": ["{here}.a", "{here}.missing"]}, {"transpose": "{here}.b"}]}, B.T),
    ],
)
def test_sources(source, value):
    resolved = resolve_source(source, SCOPE, NAMES, TENSORS)
    assert set(tensor_names(resolved)) <= set(TENSORS)
    assert tensors_read(resolved) == tuple(dict.fromkeys(tensor_names(resolved)))
    assert torch.equal(build(resolved, TENSORS.__getitem__), value)
    assert built_shape(resolved, {n: tuple(t.shape) for n, t in TENSORS.items()}) == tuple(value.shape)


def test_a_first_of_without_a_complete_option_gives_the_first_so_that_its_tensors_are_reported():
    resolved = resolve_source({"first_of": ["{here}.x", "{here}.y"]}, SCOPE, NAMES, TENSORS)
    assert resolved == "model.layers.4.x"
    with pytest.raises(KeyError, match="layers.4.x"):
        build(resolved, TENSORS.__getitem__)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{nowhere}.a", "nowhere"),
        ({"concat": ["{here}.a"], "axis": 1}, "axis"),
        ({"zip": []}, "zip"),
        (7, "neither a name"),
        ("{here", "'{here'"),
        ("{here.__class__}", "__class__"),
        ("{layer:>99}", "99"),
        ({"stack": "{here}.a"}, "keys stack"),
        ({"stack": "{here}.a", "count": "$config.word"}, r'count is "two" \(from word = "two"\), expected a whole'),
        ({"stack": "{here}.a", "count": 10**9}, "count is 1000000000"),
        ({"concat": "{here}.a"}, "concat of .*, expected a list of sources"),
        ({"first_of": []}, r"first_of of \[\]"),
        ({"split": "{here}.a", "sizes": 3, "take": 0}, "sizes is 3, expected a list"),
        ({"split": "{here}.a", "sizes": [1, -1], "take": 0}, "sizes is -1"),
        ({"split": "{here}.a", "sizes": [1, 1], "take": 2}, "take 2 of 2 parts"),
        ({"reshape": "{here}.a", "shape": ["$config.d", "x"]}, 'shape is "x"'),
    ],
)
def test_malformed_sources_are_refused(source, words):
    with pytest.raises(Day0Error, match=words):
        resolve_source(source, SCOPE, NAMES, TENSORS)


def test_shapes_that_do_not_fit_are_named():
    shapes = {n: tuple(t.shape) for n, t in TENSORS.items()}
    with pytest.raises(ValueError, match="Sizes"):
        built_shape({"concat": ["model.layers.4.a", "model.layers.4.e.0.w"], "dim": 0}, shapes)
    with pytest.raises(KeyError):
        built_shape("model.layers.4.missing", shapes)


CONCAT = {"concat": ["a", "b"], "dim": 0}
GROUPS = {"concat": [{"groups": "a", "count": 2, "sizes": [3, 1], "take": i} for i in (0, 1)], "dim": 0}
CONV = {"reshape": {"concat": ["a", "b"], "dim": 0}, "shape": [6, 4]}


@pytest.mark.parametrize(
    ("source", "wanted", "shapes", "blamed"),
    [
        ("a", (2, 3), {"a": (3, 2)}, {"a": (2, 3)}),
        ({"transpose": "a"}, (2, 3), {"a": (2, 3)}, {"a": (3, 2)}),
        (CONCAT, (6, 4), {"a": (3, 4), "b": (4, 3)}, {"b": (3, 4)}),
        (CONCAT, (6, 4), {"a": (4, 3), "b": (3, 4)}, {"a": (3, 4)}),
        (CONCAT, (6, 4), {"a": (4, 3), "b": (4, 3)}, {"a": (3, 4), "b": (3, 4)}),
        (CONCAT, (8, 4), {"a": (3, 4), "b": (3, 4)}, {"a": (4, 4), "b": (4, 4)}),
        (CONCAT, (8, 4), {"a": (3, 4), "b": (2, 4)}, {"a": None, "b": None}),
        ({"stack": ["a", "b"]}, (2, 3, 4), {"a": (3, 4), "b": (4, 3)}, {"b": (3, 4)}),
        ({"stack": [CONCAT]}, (1, 6, 4), {"a": (3, 4), "b": (4, 3)}, {"b": (3, 4)}),
        ({"split": "a", "sizes": [1, 2], "take": 1}, (2, 5), {"a": (5, 3)}, {"a": (3, 5)}),
        ({"split": "a", "sizes": [1, 2], "take": 1, "dim": 1}, (5, 2), {"a": (3, 5)}, {"a": (5, 3)}),
        (GROUPS, (8, 5), {"a": (5, 8)}, {"a": (8, 5)}),
        (CONV, (6, 4), {"a": (3, 1, 4), "b": (4, 1, 3)}, {"b": (3, 1, 4)}),
        ({"reshape": "a", "shape": [6, 4]}, (6, 4), {"a": (4, 1, 6)}, {"a": (6, 1, 4)}),
        ({"reshape": "a", "shape": [6, 4]}, (6, 4), {"a": (5, 5)}, {"a": (6, 4)}),
        ({"reshape": "a", "shape": [6, 4]}, (6, 4), {"a": (5, 5, 5)}, {"a": None}),
    ],
)
def test_the_tensor_to_blame_is_named_with_the_shape_it_needs(source, wanted, shapes, blamed):
    found = misfits(source, wanted, shapes)
    assert {name: misfit.needed for misfit in found for name in misfit.tensors} == blamed
    for misfit in found:
        assert all(shapes[name] == shape for name, shape in zip(misfit.tensors, misfit.found, strict=False))
        assert f"{misfit.tensors[0]} " in str(misfit) and str(list(misfit.needed or wanted)) in str(misfit)


@pytest.mark.parametrize(
    ("source", "wanted", "shapes"),
    [
        (CONCAT, (6, 4), {"a": (2, 4), "b": (4, 4)}),
        (GROUPS, (8, 5), {"a": (8, 5)}),
        (CONV, (6, 4), {"a": (3, 1, 4), "b": (3, 1, 4)}),
        ({"reshape": "a", "shape": [6, 4]}, (6, 4), {"a": (2, 3, 4)}),
    ],
)
def test_nothing_is_blamed_that_fits(source, wanted, shapes):
    assert misfits(source, wanted, shapes) == []


def test_a_transposed_tensor_is_not_reshaped():
    with pytest.raises(ValueError, match="in another order"):
        build({"reshape": "a", "shape": [6, 4]}, {"a": torch.zeros(4, 1, 6)}.__getitem__)


def test_description():
    source = resolve_source({"transpose": {"concat": ["{here}.a", "{here}.b"]}}, SCOPE, NAMES, TENSORS)
    assert describe(source) == "transpose, concat of 2"
    assert describe("model.x") == ""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"splt": "a", "sizes": [1]}, r'\{"splt": "a", "sizes": \[1\]\} is no tensor and no operation on tensors'),
        (5, "5 is no tensor"),
        (None, "null is no tensor"),
        ({"transpose": ["a"]}, r'\["a"\] is no tensor'),
        ({"split": "a", "take": 0}, "split with sizes null"),
        ({"split": "a", "sizes": [1, "2"], "take": 0}, r'split with sizes \[1, "2"\]'),
        ({"split": "a", "sizes": [1, 2], "take": 2}, "split takes part 2 of 2"),
        ({"groups": "a", "count": True, "sizes": [1], "take": 0}, "groups with count true"),
        ({"concat": ["a", "b"]}, "concat with dim null"),
        ({"concat": "a", "dim": 0}, "concat of"),
        ({"stack": []}, r"stack of \[\]"),
        ({"reshape": "a", "shape": []}, r"reshape with shape \[\]"),
    ],
)
def test_an_edited_weight_map_that_says_nothing_is_an_error(source, words):
    """A package is its user's to edit."""
    with pytest.raises(Day0Error, match=f"weights.json: layers.0.a.weight: {words}"):
        read_weight("layers.0.a.weight", Weight((2,)), {"concat": ["c", source], "dim": 0}, lambda name: torch.zeros(1))
