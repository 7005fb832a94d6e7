"""What a bench holds its results to: the rule of the conformance check, the worst result first."""

import math

import pytest
import torch

from day0.kernels.common.triton_bench import Deviation, deviation, wrong

ULP = 2.0**-8  # half a unit of bfloat16, relative to a power of two


def off_by(error):
    """[1, 1] with one of two numbers off, so that the relative L2 error is `error`."""
    return torch.tensor([1.0, 1.0 + error * math.sqrt(2)], dtype=torch.float64)


def test_an_error_may_be_twice_the_plain_one_and_a_rounding():
    exact = off_by(0.0)
    found = deviation((off_by(0.01), off_by(0.004), exact))
    assert found.error == pytest.approx(0.01) and found.bound == pytest.approx(2 * 0.004 + ULP)
    assert found.holds and not deviation((off_by(0.012), off_by(0.004), exact)).holds
    assert deviation((off_by(0.0039), exact, exact)).holds and not deviation((off_by(0.004), exact, exact)).holds


@pytest.mark.parametrize("bad", [0.02, math.nan])
def test_the_worst_result_counts(bad):
    """Not the one with the greatest error: that may be allowed."""
    exact = off_by(0.0)
    large, small = (off_by(0.1), off_by(0.1), exact), (off_by(bad), exact, exact)
    for results in ((large, small), (small, large)):
        found = deviation(*results)
        assert not found.holds and found.bound == pytest.approx(ULP)


def test_of_wrong_results_there_may_be_none():
    assert wrong(0) == Deviation(0.0, 0.0) and wrong(0).holds and not wrong(1).holds


def test_nan_does_not_hold():
    assert not Deviation(math.nan, 1.0).holds and not Deviation(0.0, math.nan).holds
