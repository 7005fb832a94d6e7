"""Exactness: a right package holds, a wrong one is blamed on the right operator, victims are not."""

import math
from dataclasses import replace

import pytest
import torch

from day0.align.capture import Call, Capture
from day0.align.exactness import BOUND, Exactness, Judgement, check_exactness
from day0.align.gates import exactness_gate
from day0.artifacts.alignment import Row
from day0.kernels.interface.choice import Choice
from day0.kernels.registry import get_kind
from day0.reference.match import TensorIndex

from .mutations import Mutation, mutated


def test_a_right_package_holds_everywhere(exact_package, expected):
    result = check_exactness(exact_package, expected)
    assert result.first_bad is None and not result.also_bad
    assert {row.verdict for row in result.rows} == {"holds"}
    layers = {row.layer for row in result.rows if row.operator == "layer"}
    assert layers == {0, 1, 2, 3}
    # every prompt in both modes, and every operator of every layer among the rows
    operators = {(row.layer, row.operator) for row in result.rows}
    assert len({(row.prompt, row.mode) for row in result.rows}) == 4
    assert {name for _, name in operators} >= {op.name.rsplit(".", 1)[-1] for op in exact_package.operators()}


def test_a_wrong_weight_in_one_layer_is_named_with_that_layer(exact_package, expected):
    operator = next(op for op in exact_package.operators() if op.name == "layers.2.gate_up")
    operator.weight.data[0, 0] += 1e-4
    result = check_exactness(exact_package, expected)
    assert (result.first_bad.layer, result.first_bad.operator) == (2, "gate_up")
    assert result.first_bad.error is not None and BOUND < result.first_bad.error < 1e-2
    # fed the reference's inputs, the layers after it are no victims
    assert result.also_bad == []
    isolated = [r for r in result.rows if r.operator == "layer" and r.mode == "isolated" and r.verdict != "holds"]
    assert {row.layer for row in isolated} == {2}
    propagated = [r for r in result.rows if r.operator == "layer" and r.mode == "propagated" and r.verdict != "holds"]
    assert {row.layer for row in propagated} == {2, 3}


def test_every_layer_with_a_fault_is_named(exact_package, expected):
    with mutated(exact_package, Mutation("delta_norm", "norm", "eps", 1e-3)):
        result = check_exactness(exact_package, expected)
    assert (result.first_bad.layer, result.first_bad.operator) == (0, "delta_norm")
    assert {(bad.layer, bad.operator) for bad in result.also_bad} == {(1, "delta_norm"), (2, "delta_norm")}


def call(path, kind, inputs, outputs):
    attributes = get_kind("norm").parse(dict(dim=4, eps=1e-5))
    return Call(path, kind, "", tuple(inputs), tuple(outputs), attributes, lambda others: tuple(outputs))


def judge(calls, recorded, scores=None):
    index = TensorIndex()
    for number, tensor in enumerate(recorded):
        index.add(f"tensor {number}", tensor)
    return Judgement(Capture(calls=calls), index, BOUND, scores or {})


def values(count, *shape):
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(count)]


def test_an_output_the_reference_never_holds_is_excused_by_what_is_made_of_it():
    x, hidden, y = values(3, 5, 4)
    calls = [call("layers.0.a", "norm", [x], [hidden]), call("layers.0.b", "norm", [hidden], [y])]
    judged = judge(calls, [x, y])
    assert judged.culprits(set(), "p", every_layer=True) == []
    assert judged.excused_ports() == {("a", 0)}


def test_a_pair_with_a_hidden_value_between_is_blamed_together():
    x, hidden, y, other = values(4, 5, 4)
    calls = [call("layers.0.a", "norm", [x], [hidden]), call("layers.0.b", "norm", [hidden], [y])]
    [bad] = judge(calls, [x, other]).culprits({("a", 0)}, "p", every_layer=True)
    assert bad.operator == "b" and bad.together_with == ("a",)


def test_a_choice_of_indices_excuses_no_scores():
    x, scores, wrong = values(3, 5, 4)
    chosen = torch.tensor([[0, 1], [1, 0], [2, 1], [0, 3], [3, 1]])
    calls = [call("layers.0.a", "norm", [x], [wrong]), call("layers.0.choose", "norm", [wrong], [chosen])]
    [bad] = judge(calls, [x, scores, chosen]).culprits(set(), "p", every_layer=True)
    assert bad.operator == "a"


def test_a_reader_that_hides_an_error_is_no_excuse_where_another_shows_it():
    """A norm behind `a` takes its wrong scale away; `b` does not."""
    x, y, normed, z, other = values(5, 5, 4)
    wrong = y * (1 + 1e-6)
    calls = [
        call("layers.0.a", "norm", [x], [wrong]),
        call("layers.0.hides", "norm", [wrong], [normed]),
        call("layers.0.b", "norm", [wrong], [z]),
    ]
    [bad] = judge(calls, [x, y, normed, other]).culprits(set(), "p", every_layer=True)
    assert bad.operator == "a" and bad.error == pytest.approx(1e-6, rel=1e-3)
    # where the reference holds nothing like it, the reader that is right clears it
    [bad] = judge(calls, [x, normed, other]).culprits(set(), "p", every_layer=True)
    assert bad.operator == "b"


def choosing(scores, x, chosen):
    return replace(call("layers.0.choose", "norm", [x], [chosen]), choices={"c": Choice(scores, 2)})


CHOSEN = torch.tensor([[0, -1], [1, 0], [2, 1], [0, 3], [3, 1]])


@pytest.mark.parametrize("factor", [1 + 1e-6, 4.0])
def test_other_scores_are_told_although_they_choose_the_same(factor):
    x, scores = values(2, 5, 4)
    judged = judge([choosing(scores * factor, x, CHOSEN)], [x, CHOSEN], {"line": [scores]})
    [bad] = judged.culprits(set(), "p", every_layer=True)
    assert (bad.operator, bad.port, bad.nearest) == ("choose", "scores of c", "line")
    assert bad.error == pytest.approx(factor - 1) and not judged.located()
    right = judge([choosing(scores, x, CHOSEN)], [x, CHOSEN], {"line": [scores]})
    assert right.culprits(set(), "p", every_layer=True) == []
    assert right.located()["layers.0.choose", "", "scores of c"][0].location == "line"


def test_scores_of_a_choice_are_no_one_s_fault_behind_a_wrong_input():
    x, y, scores = values(3, 5, 4)
    calls = [call("layers.0.a", "norm", [x], [y * 1.01]), choosing(scores * 1.01, x, CHOSEN)]
    calls[1] = replace(calls[1], inputs=calls[0].outputs)
    [bad] = judge(calls, [x, y, CHOSEN], {"line": [scores]}).culprits(set(), "p", every_layer=True)
    assert bad.operator == "a"


def test_right_scores_excuse_what_they_are_made_of():
    """The reference never holds what goes into them; other scores are no excuse, nor is a choice without scores."""
    x, hidden, scores = values(3, 5, 4)
    first = call("layers.0.a", "norm", [x], [hidden])
    for given, culprits in ((scores, []), (scores * 1.01, ["a"]), (scores.flip(0), ["a"])):
        judged = judge([first, choosing(given, hidden, CHOSEN)], [x, CHOSEN], {"line": [scores]})
        assert [bad.operator for bad in judged.culprits(set(), "p", every_layer=True)] == culprits


def test_a_choice_whose_scores_the_reference_does_not_show_is_named():
    x, scores = values(2, 5, 4)
    judged = judge([choosing(scores, x, CHOSEN)], [x, CHOSEN])
    assert judged.culprits(set(), "p", every_layer=True) == []
    assert judged.choices(scored=False) == {"layers.0.choose scores of c"} and judged.choices(scored=True) == set()


def test_scores_like_none_are_judged_by_the_line_that_another_forward_found_theirs():
    """Otherwise the choice is the same, and nothing says that here it is made by other scores."""
    x, scores, other = values(3, 5, 4)
    right = judge([choosing(scores, x, CHOSEN)], [x, CHOSEN], {"line": [scores], "other": [other]})
    wrong = judge([choosing(scores.flip(0), x, CHOSEN)], [x, CHOSEN], {"line": [scores], "other": [other]})
    assert wrong.culprits(set(), "p", every_layer=True) == []
    wrong.hold_to(right.lines())
    [bad] = wrong.culprits(set(), "p", every_layer=True)
    assert (bad.port, bad.nearest) == ("scores of c", "line") and bad.error > 0.1
    # the line did not run, as where a prompt is too short to choose
    short = judge([choosing(scores.flip(0), x, CHOSEN)], [x, CHOSEN], {"other": [other]})
    short.hold_to(right.lines())
    assert short.culprits(set(), "p", every_layer=True) == []


def test_scores_that_are_not_a_number_are_wrong():
    x, scores = values(2, 5, 4)
    for rows in (slice(2, 3), slice(None)):
        broken = scores.clone()
        broken[rows] = math.nan
        [bad] = judge([choosing(broken, x, CHOSEN)], [x, CHOSEN], {"line": [scores]}).culprits(
            set(), "p", every_layer=True
        )
        assert (bad.operator, bad.port) == ("choose", "scores of c")


def test_the_gate_names_a_tensor_where_it_names_no_operator():
    def gate(**wrong):
        row = Row(gate="exactness", prompt="p", mode="isolated", layer=2, operator="a", kind="norm", port="y",
                  bound=1e-10, verdict="does not hold", **wrong)  # fmt: skip
        return exactness_gate("exactness", Exactness(rows=[row]))

    assert gate(error=0.5).detail == "a 2 y: relative error 5.00e-01"
    assert gate(error=None, note="no tensor of the reference is near").detail == (
        "a 2 y: no tensor of the reference is near"
    )
    assert gate(error=None).verdict == "does not hold"


def test_an_unread_output_is_judged_by_the_others():
    x, y, unread = values(3, 5, 4)
    judged = judge([call("layers.0.a", "norm", [x], [y, unread])], [x, y])
    assert judged.culprits(set(), "p", every_layer=True) == []


@pytest.mark.parametrize("scale,named", [(1.0001, "a"), (-40.0, "a")])
def test_the_nearest_tensor_is_told_where_there_is_one(scale, named):
    x, y = values(2, 5, 4)
    [bad] = judge([call("layers.0.a", "norm", [x], [y * scale])], [x, y]).culprits(set(), "p", every_layer=True)
    assert bad.operator == named
    assert bad.nearest == ("tensor 1" if scale > 0 else "")
