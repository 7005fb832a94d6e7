"""Precision: rounding like the reference's holds, more than twice of it does not, ties are told from rounding."""

import math
from dataclasses import replace

import pytest
import torch

from day0.align.capture import Call, Capture
from day0.align.exactness import check_exactness
from day0.align.gates import precision_gate
from day0.align.precision import (
    JUMP,
    Precision,
    _add,
    _Captures,
    _Compared,
    _row,
    _Ties,
    broken_rows,
    check_precision,
    row_errors,
    ulp_floor,
)
from day0.align.ties import Ties
from day0.align.training_side import ReferenceCapture
from day0.kernels.interface.choice import Choice
from day0.reference.match import Match


@pytest.fixture
def located(exact_package, expected):
    return check_exactness(exact_package, expected[:1]).located


def test_the_package_rounds_like_the_reference(package, exact_reference, reference, located, prompts):
    result = check_precision(package, exact_reference, reference, located, prompts, modes=("isolated", "propagated"))
    assert precision_gate("p", result).verdict == "holds"
    isolated = {(r.layer, r.operator, r.port) for r in result.rows if r.mode == "isolated"}
    assert (1, "delta", "o") in isolated and (3, "layer", "") in isolated and (None, "logits", "") in isolated
    assert {(r.operator, r.layer) for r in result.rows if r.mode == "propagated"} == {
        ("layer", 0), ("layer", 1), ("layer", 2), ("layer", 3), ("logits", None)
    }  # fmt: skip
    # errors are float32's: neither zero everywhere nor beyond a few hundred roundings
    errors = [row.error for row in result.rows]
    assert 1e-8 < max(errors) < 1e-5


def test_an_operator_that_rounds_too_much_is_named(package, exact_reference, reference, located, prompts):
    """An accumulation in half precision: 2^-11 against float32's 2^-24."""
    operator = next(op for op in package.operators() if op.name == "layers.1.delta_norm")
    plain = operator.run
    operator.run = lambda *ports, **named: plain(*(p.half().float() for p in ports), **named)
    result = check_precision(package, exact_reference, reference, located, prompts, modes=("isolated",))
    failing = [row for row in result.rows if row.verdict != "holds"]
    assert failing[0].layer == 1 and failing[0].operator == "delta_norm" and failing[0].ratio > 100
    assert {row.layer for row in failing} == {1}
    assert precision_gate("p", result).verdict == "does not hold"


def test_floor_is_about_one_rounding():
    assert ulp_floor(torch.float32, 1) == pytest.approx(2**-24 * 2 / math.sqrt(3))
    assert ulp_floor(torch.float32, 4096) < 5 * 2**-24
    # bf16 values rounded once from exact ones lie below it, on average
    exact = torch.rand(100_000, dtype=torch.float64) + 1
    once = (exact.bfloat16().double() - exact).norm() / exact.norm()
    assert 0.3 * ulp_floor(torch.bfloat16, 2) < once < ulp_floor(torch.bfloat16, 2)


def compared(reference, package, probes=()):
    truth = torch.ones(10, 4, dtype=torch.float64)
    move = lambda sizes: truth * (1 + torch.tensor(sizes, dtype=torch.float64)[:, None])  # noqa: E731
    return _Compared(0, "a", "", "", "", truth, move(reference), tuple(move(p) for p in probes), move(package))


def ties(shown=(), unknown=()):
    """Ties of layer 0, in these rows of ten."""
    rows = [torch.tensor([row in given for row in range(10)]) for given in (shown, unknown)]
    return _Ties(10, Ties({0: rows[0]}, {0: rows[1]}))


SMALL = [1e-7] * 10
JUMPED = [*SMALL[:9], 0.3]


def test_a_jump_of_the_package_alone_is_left_out_where_a_tie_is_shown():
    tie = ties(shown=[9])
    assert tie.stable_rows(compared(SMALL, JUMPED), 1e-8).tolist() == [True] * 9 + [False]
    assert (tie.report("g", "isolated", "p").reference, tie.report("g", "isolated", "p").package) == (0, 1)
    # elsewhere it is compared, be it a single row; a choice whose scores nobody sees is no excuse
    for other in (ties(), ties(shown=[8]), ties(unknown=range(10))):
        assert other.stable_rows(compared(SMALL, JUMPED), 1e-8).all()
        assert other.report("g", "isolated", "p").rows == ()
    # and so it is in a layer whose choices show none
    assert ties(shown=[9]).stable_rows(replace(compared(SMALL, JUMPED), layer=1), 1e-8).all()


@pytest.mark.parametrize("tie", [ties(shown=[9]), ties(unknown=[9])])
def test_a_jump_of_the_reference_is_its_own_where_a_choice_may_explain_it(tie):
    """Be it that the package jumps too, or a probe of the reference alone."""
    tie.stable_rows(compared(SMALL, JUMPED, probes=[JUMPED]), 1e-8)
    report = tie.report("g", "isolated", "p")
    assert (report.reference, report.package, report.rows) == (1, 0, (9,))


def test_a_jump_of_the_reference_without_a_tie_is_compared():
    assert ties(shown=[8]).stable_rows(compared(JUMPED, JUMPED), 1e-8).all()


def test_rows_on_a_tie_that_do_not_jump_are_compared():
    spread = [1e-7 * (1 + i % 5) for i in range(10)]
    assert ties(shown=range(10)).stable_rows(compared(spread, [JUMP * 0.9e-7] * 10), 1e-8).all()


@pytest.mark.parametrize("value,left_out", [(1.9, True), (2.1, False), (math.nan, False), (math.inf, False)])
def test_a_jump_further_than_another_choice_reaches_is_compared(value, left_out):
    """All rows of the truth are equally large: what another choice gives is at most twice their norm away."""
    tensor = compared([1e-7] * 10, [1e-7] * 9 + [value])
    assert ties(shown=[9]).stable_rows(tensor, 1e-8).tolist() == [True] * 9 + [not left_out]
    # nor does the reference's own jump excuse what is not finite
    both = compared([1e-7] * 9 + [0.3], [1e-7] * 9 + [value])
    assert ties(shown=[9]).stable_rows(both, 1e-8).tolist() == [True] * 9 + [not math.isfinite(value)]


def test_one_row_of_nan_in_the_package_is_named(package, exact_reference, reference, located, prompts):
    operator = next(op for op in package.operators() if op.name == "layers.1.delta_norm")
    plain = operator.run

    def broken(*ports, **named):
        result = plain(*ports, **named).clone()
        result[4] = math.nan
        return result

    operator.run = broken
    result = check_precision(package, exact_reference, reference, located, prompts[:1], modes=("isolated",))
    failing = [row for row in result.rows if row.verdict != "holds"]
    assert (failing[0].layer, failing[0].operator) == (1, "delta_norm") and "not finite" in failing[0].note
    gate = precision_gate("p", result)
    assert gate.verdict == "does not hold" and gate.detail.startswith("delta_norm 1 ")


def test_row_errors_are_infinite_for_nan():
    truth = torch.ones(2, 3)
    wrong = truth.clone()
    wrong[1, 0] = math.nan
    assert row_errors(wrong, truth).tolist() == [0.0, math.inf]


def test_where_every_row_sits_on_a_tie_nothing_is_said():
    """All prompts' rows left out is no comparison: it must not hold."""
    sums: dict = {}
    _add(sums, compared(SMALL, JUMPED), torch.zeros(10, dtype=torch.bool))
    [total] = sums.values()
    row = _row(total, torch.float32, "g", "propagated")
    assert (row.verdict, row.error) == ("inconclusive", 0.0)
    gate = precision_gate("g", Precision(rows=[row]))
    assert gate.verdict == "inconclusive" and gate.detail.startswith("a 0 (propagated): every row sits on a tie")
    held = row.model_copy(update={"verdict": "holds"})
    assert precision_gate("g", Precision(rows=[held, row])).verdict == "inconclusive"
    failed = row.model_copy(update={"verdict": "does not hold"})
    assert precision_gate("g", Precision(rows=[failed, row])).verdict == "does not hold"


@pytest.fixture
def chosen():
    """A choice of one call, and where it is located; what the reference chose by in float64 and in float32."""
    exact = torch.tensor([[4.0, 3.0, 1.0], [1.0, 2.0, 5.0]], dtype=torch.float64)

    def compare(package, *, lost=None):
        reference = exact.float() if lost is None else None
        call = Call("layers.0.a", "norm", "", (), (), None, tuple, {"x": Choice(package, 1)})
        sides = [ReferenceCapture(scores={} if s is None else {"line": [s]}) for s in (exact, reference)]
        captures = _Captures(*sides, [], Capture(calls=[call]))
        located = {("layers.0.a", "", "scores of x"): [Match("line", (), 0.0)]}
        return list(captures.operators(located, set() if lost is None else lost))

    return exact, compare


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_finite_in_the_package_alone_are_compared(chosen, value):
    exact, compare = chosen
    package = exact.float()
    package[1, 0] = -math.inf  # may not be chosen: no score at all
    assert [broken_rows(tensor).tolist() for tensor in compare(package)] == [[False, False]]
    package[0, 1] = value
    assert [broken_rows(tensor).tolist() for tensor in compare(package)] == [[True, False]]


def test_scores_that_one_run_of_the_reference_does_not_show_are_named(chosen):
    exact, compare = chosen
    lost = set()
    assert compare(exact.float(), lost=lost) == [] and lost == {"layers.0.a scores of x"}
