import pytest

from day0.check.figures import UNIT_ROUNDOFF, figures, greedy_figures
from tests.check.alignments import alignment, cell, row


def test_the_worst_of_layers_and_prompts_is_kept():
    found = figures(alignment(row(1e-13, layer=1), row(4e-13, layer=2), row(2e-13, layer=2, prompt="prose")))
    assert list(found) == ["exactness/propagated/attention.y"]
    assert found["exactness/propagated/attention.y"].error == 4e-13


def test_gates_operators_and_cells_are_figures_of_their_own():
    found = figures(
        alignment(
            row(1e-13), row(1e-13, operator="logits"), row(1e-7, gate="precision float32"), cells=(cell(2e-12, 3e-12),)
        )
    )
    assert set(found) == {
        "exactness/propagated/attention.y",
        "exactness/propagated/logits.y",
        "precision float32/propagated/attention.y",
        "invariance/chunked float64/logits",
        "invariance/chunked float64/state",
    }
    assert found["invariance/chunked float64/logits"].error == 2e-12
    assert found["invariance/chunked float64/state"].error == 3e-12


def test_tensors_that_the_reference_never_makes_are_no_figures():
    assert figures(alignment(row(None))) == {}


@pytest.mark.parametrize(
    ("gate", "dtype"),
    [("exactness", "float64"), ("precision float32", "float32"), ("precision bfloat16", "bfloat16")],
)
def test_the_floor_is_that_of_the_gates_dtype(gate, dtype):
    (figure,) = figures(alignment(row(1e-9, gate=gate))).values()
    assert figure.floor == 8 * UNIT_ROUNDOFF[dtype]


def test_unit_roundoffs_are_those_of_torch():
    import torch

    assert {name: torch.finfo(getattr(torch, name)).eps / 2 for name in UNIT_ROUNDOFF} == UNIT_ROUNDOFF


def test_greedy_continuations():
    assert greedy_figures(alignment(equal=False, tokens=7))["code"].model_dump() == {
        "prompt": "code",
        "tokens": 7,
        "equal": False,
    }
