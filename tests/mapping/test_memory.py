import math
from fnmatch import fnmatchcase

import pytest

from day0.artifacts.layout import Component
from day0.demo import model_path
from day0.language.recipe import find_recipe
from day0.mapping.choose import Target
from day0.mapping.device import Figure, load_device
from day0.mapping.memory import forecast, sequences_that_fit, weight_bytes
from day0.mapping.options import MapOptions
from day0.repo import ModelRepo
from tests.mapping.inventories import inventory, inventory_of_config, operator

LINEAR = {"in_features": 48, "out_features": 80}
PAGED = Component(name="latent", role="token_paged", shape=(48,), rollback="truncate")
POOLED = Component(name="pooled", role="token_paged", shape=(16,), tokens_per_entry=4, rollback="truncate", index=True)
STATE = Component(name="state", role="per_sequence", shape=(3, 8, 8), dtype="float32", rollback="restore")


def target(memory=10**9, dtype="bfloat16", **options):
    device = load_device("h200").model_copy(update={"memory_bytes": Figure(value=memory, source="a test's own")})
    return Target(device, dtype, MapOptions(**options))


def model(*operators, **config):
    return inventory(operators, config=config)


def test_weights_are_counted_per_layer_and_in_the_dtype():
    assert weight_bytes(operator("l", "linear", LINEAR, layers=(0, 2, 5)), 2) == 3 * 48 * 80 * 2
    assert weight_bytes(operator("l", "linear", LINEAR), 4) == 48 * 80 * 4
    assert weight_bytes(operator("odd", "", {}, status="new", parameters=1000, layers=(0, 1)), 2) == 2000


def test_weights_that_stay_in_float32_are_counted_so():
    attributes = dict(width=8, hidden=4, experts=6, top_k=2, scores="sigmoid", selection_bias=True)
    matrices = 6 * 8 + 6 * 2 * 4 * 8 + 6 * 8 * 4
    for size, bias_size in ((2, 4), (4, 4), (8, 8)):
        assert weight_bytes(operator("m", "moe", attributes), size) == matrices * size + 6 * bias_size


def test_state_is_counted_per_token_and_per_sequence_over_the_layers():
    held = operator("a", "linear", LINEAR, layers=(1, 3), state=(PAGED, POOLED, STATE))
    memory = forecast(model(held), target())
    assert memory.kv_bytes_per_token == 2 * (48 * 2 + 16 * 2 / 4)
    assert memory.state_bytes_per_sequence == 2 * 3 * 8 * 8 * 4


def test_sequences_fill_the_free_memory_exactly():
    held = operator("a", "linear", LINEAR, layers=(0,), state=(PAGED, STATE))
    memory = forecast(model(held), target())
    free = int(0.9 * 10**9) - memory.weights_bytes - memory.workspace_bytes
    each = 4096 * 96 + 3 * 8 * 8 * 4
    assert memory.sequences_at["4K"] == free // each
    assert (memory.sequences_at["4K"] + 1) * each > free
    assert memory.longest_context == (free - 768) // (96 * 64) * 64
    assert memory.longest_context * 96 + 768 <= free < (memory.longest_context + 64) * 96 + 768
    assert memory.fits and f"= {free} bytes" in memory.formula


def test_caches_come_in_whole_pages():
    assert sequences_that_fit(65, 128 * 10, 10, 0) == 1
    assert sequences_that_fit(65, 128 * 10 - 1, 10, 0) == 0
    assert sequences_that_fit(64, 128 * 10, 10, 0) == 2
    assert sequences_that_fit(64, -5, 10, 0) == 0


def test_workspace_follows_the_largest_operator_and_the_prefill_size():
    narrow, wide = operator("narrow", "linear", LINEAR), operator("wide", "linear", {**LINEAR, "out_features": 1000})
    memory = forecast(model(narrow, wide), target(prefill_tokens=100))
    assert memory.workspace_bytes == 2 * 100 * (48 + 1000) * 2
    assert "outputs of wide over 100 tokens" in memory.formula


def test_a_model_larger_than_the_device_does_not_fit():
    big = operator("l", "linear", {"in_features": 10_000, "out_features": 60_000}, state=(PAGED,))
    memory = forecast(model(big), target())
    assert not memory.fits and memory.longest_context == 0 and set(memory.sequences_at.values()) == {0}


def test_longest_context_is_bounded_by_training():
    held = operator("a", "linear", LINEAR, state=(PAGED,))
    assert forecast(model(held, max_position_embeddings=4096), target()).longest_context == 4096


def test_no_context_beyond_training_is_forecast():
    held = operator("a", "linear", LINEAR, state=(PAGED,))
    assert list(forecast(model(held), target()).sequences_at) == ["4K", "32K", "128K", "1M"]
    assert list(forecast(model(held, max_position_embeddings=131072), target()).sequences_at) == ["4K", "32K", "128K"]
    assert list(forecast(model(held, max_position_embeddings=512), target()).sequences_at) == ["512"]


def test_constant_state_bounds_no_context():
    held = operator("a", "linear", LINEAR, state=(STATE,))
    assert forecast(model(held), target()).longest_context is None
    assert forecast(model(held, max_position_embeddings=512), target()).longest_context == 512
    full = forecast(model(held), target(memory=100))
    assert full.longest_context == 0 and not full.fits


def test_sequences_of_a_stateless_model_are_not_bounded():
    memory = forecast(model(operator("l", "linear", LINEAR)), target())
    assert memory.kv_bytes_per_token == 0 and memory.state_bytes_per_sequence == 0
    assert memory.fits and memory.longest_context is None and memory.sequences_at == {}
    assert memory.formula.endswith("a sequence keeps nothing") and "/" not in memory.formula
    assert not forecast(model(operator("l", "linear", LINEAR)), target(memory=100)).fits


def test_without_kinds_only_the_weights_are_forecast():
    module = operator("m", "Linear", {}, status="new", parameters=1000)
    memory = forecast(model(module, max_position_embeddings=512), target())
    assert memory.weights_bytes == 2000 and memory.fits is None and not memory.known
    assert (memory.kv_bytes_per_token, memory.state_bytes_per_sequence, memory.workspace_bytes) == (None,) * 3
    assert memory.longest_context is None and memory.sequences_at == {}
    assert f"= {int(0.9 * 10**9) - 2000} bytes for caches" in memory.formula and "/" not in memory.formula
    assert forecast(model(module), target(memory=2000)).fits is False


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_demo_weighs_what_its_checkpoint_weighs(dtype):
    """Every tensor that the recipe does not leave out is stored once, in the dtype or in float32."""
    repo = ModelRepo.open(model_path())
    left_out = [entry.pattern for entry in find_recipe(repo.config).left_out]
    kept = [h for name, h in repo.tensors.items() if not any(fnmatchcase(name, pattern) for pattern in left_out)]
    stored = sum(math.prod(header.shape) for header in kept)
    size = {"bfloat16": 2, "float32": 4}[dtype]
    weights = forecast(inventory_of_config(repo.config), target(dtype=dtype)).weights_bytes
    assert stored * size <= weights <= stored * size * 1.01
    assert 12_000_000 < stored < 12_100_000
