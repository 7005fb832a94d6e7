"""A kind that chooses says so, and gives the scores behind it: otherwise align would neither compare nor miss them."""

import importlib

import pytest

from day0.kernels.registry import get_kind, kind_names, resolve, resolve_choices


@pytest.mark.parametrize("name", kind_names())
def test_a_kind_declares_its_choices_where_its_reference_gives_them(name):
    module = importlib.import_module(get_kind(name).implementation("torch").module)
    assert get_kind(name).chooses == hasattr(module, "choices")
    assert resolve_choices(name) is (resolve(name, "torch", "choices") if get_kind(name).chooses else None)
