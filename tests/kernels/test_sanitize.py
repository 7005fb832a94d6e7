"""`make sanitize` goes over every folder with Triton kernels, and over a case that there is."""

import pytest

from day0.kernels.registry import declared
from tests.kernels.sanitize import CASES
from tests.kernels.triton_folders import with_triton_kernels


def test_every_folder_with_triton_kernels_is_sanitized():
    assert set(CASES) == with_triton_kernels()


@pytest.mark.parametrize("folder", CASES)
def test_the_case_is_one(folder):
    names = [case.name for case in declared(folder, "triton_cases", "CASES") if CASES[folder] in case.name]
    assert CASES[folder] in names
