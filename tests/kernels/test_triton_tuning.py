"""Tuning: launches only look up; what was measured is kept on disk per device, versions and kernel source."""

import json

import pytest

from day0.kernels.common import triton_tuning
from day0.kernels.common.triton_tuning import Space, size_bucket

CONFIGS = ({"block": 16, "num_warps": 4}, {"block": 32, "num_warps": 4}, {"block": 64, "num_warps": 8})


@pytest.fixture
def space(tmp_path, monkeypatch):
    """A space on a pretended device, its results in an empty folder."""
    monkeypatch.setenv("DAY0_CACHE", str(tmp_path))
    monkeypatch.setattr(triton_tuning.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_tuning, "_device_key", lambda: "card-0123")
    triton_tuning._load.cache_clear()
    source = tmp_path / "kernel.py"
    source.write_text("kernel")
    return Space("norm.rms", str(source), CONFIGS)


def test_what_was_not_measured_takes_the_first(space):
    assert space.config((8, "bf16")) == CONFIGS[0]


def test_the_fastest_is_kept_for_the_next_process(space):
    asked = []

    def measure(config):
        asked.append(config)
        return {16: 3.0, 32: 1.0, 64: float("inf")}[config["block"]]

    assert space.tune((8, "bf16"), measure) == CONFIGS[1] and asked == list(CONFIGS)
    triton_tuning._load.cache_clear()  # another process
    assert space.config((8, "bf16")) == CONFIGS[1] and space.config((16, "bf16")) == CONFIGS[0]
    assert space.tune((8, "bf16"), measure) == CONFIGS[1] and len(asked) == 3, "measured again"


def test_an_edited_kernel_or_another_card_measures_again(space, monkeypatch, tmp_path):
    space.tune((8,), lambda config: -config["block"])
    assert space.config((8,)) == CONFIGS[2]
    monkeypatch.setattr(triton_tuning, "_device_key", lambda: "other-0123")
    assert space.config((8,)) == CONFIGS[0]
    monkeypatch.setattr(triton_tuning, "_device_key", lambda: "card-0123")
    (tmp_path / "kernel.py").write_text("edited")
    triton_tuning._source_hash.cache_clear()
    assert space.config((8,)) == CONFIGS[0]


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"8": {"block": 128}}), json.dumps({"8": 3})])
def test_a_damaged_file_or_a_configuration_no_longer_declared_counts_as_nothing(space, text):
    space.tune((8,), lambda config: -config["block"])
    space._path().write_text(text)
    triton_tuning._load.cache_clear()
    assert space.config((8,)) == CONFIGS[0]


def test_size_buckets_are_powers_of_two():
    assert [size_bucket(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
