"""What counts as confirmed: tensors that were found, made of values that were."""

import pytest
import torch

from day0.decompose import proof
from day0.decompose.interpret import OperatorCall
from day0.decompose.proof import Probe, search
from day0.reference.match import TensorIndex


class Use:
    kind = ""

    def __init__(self, name):
        self.name = self.path = name


@pytest.fixture
def searched(monkeypatch):
    """`search` over calls (name, inputs, outputs) in place of a program, against these tensors of a reference."""

    def run(calls, recorded, **options):
        class Calls:
            def __init__(self, *arguments, **keywords):
                pass

            def run(self, ids, observe):
                for name, inputs, outputs in calls:
                    observe(OperatorCall(Use(name), "", inputs, outputs))

        monkeypatch.setattr(proof, "Interpreter", Calls)
        index = TensorIndex()
        for number, tensor in enumerate(recorded):
            index.add(str(number), tensor)
        found = search(None, {}, [Probe("probe", (1, 2), (index,))], tolerance=1e-10, **options)
        return {f.name: f for f in found}

    return run


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("outputs", [(), (None,), ((),)])
def test_an_operator_without_tensors_is_not_proved(searched, outputs):
    value = draw(2, 5)
    found = searched([("first", (), (value,)), ("silent", (value,), outputs)], [value])
    assert found["first"].proved
    assert found["silent"].confirmed_by is None and not found["silent"].proved


@pytest.mark.parametrize("forced", [{}, {("scores", ""): ""}])
def test_an_equal_choice_from_unknown_values_is_not_proved(searched, forced):
    """Also where they were to be replaced by the reference's, and it has nothing like them."""
    scores, choice = draw(2, 5), torch.tensor([[0, -1], [0, 1]])
    calls = [("scores", (), (scores,)), ("choose", (scores,), (choice,))]
    alone = searched(calls, [choice], forced=forced)
    assert alone["choose"].own and not alone["choose"].proved and not alone["scores"].proved
    both = searched(calls, [choice, scores], forced=forced)
    assert both["choose"].proved and both["scores"].proved


def test_found_values_prove_what_they_were_made_of(searched):
    inner, outer = draw(2, 5), draw(2, 5)
    found = searched([("inner", (), (inner,)), ("outer", (inner,), (outer,))], [outer])
    assert found["inner"].confirmed_by is found["outer"] and found["inner"].proved and found["outer"].proved
