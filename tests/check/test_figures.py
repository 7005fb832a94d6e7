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
            row(1e-13),
            row(1e-13, operator="logits"),
            row(1e-7, gate="precision float32", bound=4e-7, ratio=0.5),
            cells=(cell(2e-12, 3e-12),),
        )
    )
    assert set(found) == {
        "exactness/propagated/attention.y",
        "exactness/propagated/logits.y",
        "precision float32/propagated/attention.y / bound",
        "invariance/chunked float64/logits",
        "invariance/chunked float64/state",
    }
    assert found["precision float32/propagated/attention.y / bound"].error == 0.25
    assert found["invariance/chunked float64/logits"].error == 2e-12
    assert found["invariance/chunked float64/state"].error == 3e-12


def test_tensors_that_the_reference_never_makes_are_no_figures():
    assert figures(alignment(row(None))) == {}


@pytest.mark.parametrize(
    ("gate", "dtype"),
    [("exactness", "float64"), ("golden float32", "float32"), ("golden bfloat16", "bfloat16")],
)
def test_the_floor_is_that_of_the_gates_dtype(gate, dtype):
    (figure,) = figures(alignment(row(1e-9, gate=gate))).values()
    assert figure.floor == 8 * UNIT_ROUNDOFF[dtype]


def test_unit_roundoffs_are_those_of_torch():
    import torch

    assert {name: torch.finfo(getattr(torch, name)).eps / 2 for name in UNIT_ROUNDOFF} == UNIT_ROUNDOFF


def test_precision_counts_as_a_share_of_the_references_own_error():
    """A worst row that moves to a layer where the reference is worse too is no regression."""
    early = row(1e-7, gate="precision float32", layer=1, bound=2e-7, ratio=1.0)
    late = row(1e-6, gate="precision float32", layer=7, bound=3e-6, ratio=0.67)
    (figure,) = figures(alignment(early, late)).values()
    assert (figure.error, figure.bound, figure.floor) == (0.5, 1.0, 0.5)


def test_greedy_continuations():
    assert greedy_figures(alignment(equal=False, tokens=7))["code"].model_dump() == {
        "prompt": "code",
        "tokens": 7,
        "equal": False,
    }
