"""Finding a tensor among recorded ones: by content, whatever the axis order, and nothing else."""

import math

import pytest
import torch

from day0.reference.match import TensorIndex, arrange, error

GENERATOR = torch.Generator().manual_seed(11)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


@pytest.fixture
def index():
    found = TensorIndex()
    for number in range(20):
        found.add(f"noise {number}", draw(1, 7, 3, 4))
    return found


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 2, 1), (0, 2, 3, 1)])
def test_found_in_any_axis_order(index, axes):
    packed = draw(7, 12)
    index.add("here", packed.reshape(1, 7, 3, 4).permute(axes).contiguous())
    match = index.find(packed, 1e-12)
    assert match.location == "here" and match.error == 0.0
    assert torch.equal(arrange(index["here"], match.axes).reshape(7, 12), packed)


def test_equal_elements_in_another_order_are_not_equal(index):
    packed = draw(7, 12)
    index.add("shuffled", packed.reshape(-1)[torch.randperm(84, generator=GENERATOR)].reshape(1, 7, 3, 4))
    assert index.find(packed, 1e-6) is None


def test_tolerance_decides(index):
    packed = draw(7, 12)
    direction = draw(7, 12)
    direction -= packed * (direction * packed).sum() / packed.square().sum()  # leaves the norm as it is
    off = packed + 1e-8 * direction * packed.norm() / direction.norm()
    index.add("near", off.reshape(1, 7, 12))
    assert index.find(packed, 1e-9) is None
    assert index.find(packed, 1e-7).error == pytest.approx(1e-8, rel=1e-3)
    assert index.nearest(packed).location == "near"


def test_nothing_is_near_noise(index):
    assert index.nearest(draw(7, 12)) is None


def test_zeros_and_single_elements_match_nothing(index):
    index.add("zeros", torch.zeros(1, 7, 3, 4, dtype=torch.float64))
    index.add("one", torch.ones(1, dtype=torch.float64))
    assert index.find(torch.zeros(7, 12, dtype=torch.float64), 1e-9) is None
    assert index.find(torch.ones(1, dtype=torch.float64), 1e-9) is None


def test_infinite_entries_must_stand_in_the_same_places():
    scores = draw(5, 6)
    masked = scores.masked_fill(scores > 0.5, -math.inf)
    index = TensorIndex()
    index.add("masked", masked[None])
    assert index.find(masked, 1e-12).location == "masked"
    assert index.find(scores.masked_fill(scores > 0.6, -math.inf), 1e-12) is None


@pytest.mark.parametrize(
    "rows,found",
    [
        ([[2, 0, 1], [4, 3, 5]], True),  # order means nothing
        ([[0, 1, -1], [3, 4, 5]], False),  # token 2, which the query sees, is dropped
        ([[-1, -1, -1], [-1, -1, -1]], False),
        ([[0, 1, 2], [-1, -1, -1]], False),
        ([[0, 1, 2], [3, -1, 5]], False),
        ([[0, 1, 2], [3, 4, 6]], False),
        ([[0, 1, 6], [3, -1, -1]], False),
    ],
)
def test_choices_compare_as_sets(rows, found):
    index = TensorIndex()
    index.add("choice", torch.tensor([[[0, 1, 2], [3, 4, 5]]]))
    assert (index.find_choice(torch.tensor(rows), first_position=9) == "choice") is found


def test_recorded_choices_count_as_far_as_the_query_sees():
    """A top-k of masked scores names positions that the query cannot see: at positions 1, 2 and 3 here."""
    index = TensorIndex()
    index.add("choice", torch.tensor([[[0, 5, 1], [2, -1, 0], [1, 3, 2]]]))
    exact = torch.tensor([[0, 1, -1], [0, 2, -1], [1, 2, 3]])
    assert index.find_choice(exact, first_position=1) == "choice"
    assert index.find_choice(exact) is None, "at position 0 the first query does not see token 1"
    assert index.find_choice(exact, first_position=5) is None, "and at position 5 it sees token 5"
    dropped = exact.masked_fill(exact == 2, -1)
    assert index.find_choice(dropped, first_position=1) is None
    index.add("nothing", torch.tensor([[4, 4, 4], [4, 4, 4], [4, 4, 4]]))
    assert index.find_choice(torch.full((3, 3), -1)) is None


def test_error_of_non_finite_and_zero():
    one = torch.ones(3)
    assert error(torch.tensor([1.0, math.nan, 1.0]), one) == math.inf
    assert error(torch.zeros(3), torch.zeros(3)) == 0.0
    assert error(one, torch.zeros(3)) == math.inf
    assert error(one * 1.5, one) == pytest.approx(0.5)
