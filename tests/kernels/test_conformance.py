"""The check that kernels are held to: it passes what is right, and sees what is wrong in results and in memory."""

import importlib

import pytest
import torch

from day0.kernels.common.conformance import Case, check
from day0.kernels.registry import get_kind

RECURRENCE = dict(key_heads=2, value_heads=4, key_dim=8, value_dim=16, delta_rule=True, decay="per_head", beta="given")
ATTENTION = dict(memory="kv", heads=2, value_dim=8, scale=0.3, kv_heads=1, head_dim=8)


def recurrence_ports(a, n, generator):
    def draw(width):
        return torch.randn(n, width, dtype=torch.float64, generator=generator) / 4

    return draw(16), draw(16), draw(64), draw(4), draw(4).sigmoid()


def attention_ports(a, n, generator):
    return tuple(torch.randn(n, width, dtype=torch.float64, generator=generator) for width in (16, 8, 8))


def random_weights(kind):
    def draw(a, generator):
        owned = get_kind(kind).weights(a)
        return {name: torch.randn(w.shape, dtype=torch.float64, generator=generator) for name, w in owned.items()}

    return draw


RAGGED = ((5, 1, 3), (0, 1, 1), (70, 0))
CASES = {
    "recurrence": Case("r", RECURRENCE, RAGGED, recurrence_ports, random_weights("recurrence")),
    "attention": Case("a", ATTENTION, ((65, 1, 3), (0, 1, 1)), attention_ports, random_weights("attention")),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_reference_conforms_to_itself(kind, dtype):
    found = check(kind, "torch", CASES[kind], dtype=dtype)
    assert all(f.holds for f in found)
    state = {c.name for c in get_kind(kind).components(get_kind(kind).parse(CASES[kind].attributes))}
    assert {f.what for f in found} == {"output 0", *state}
    assert {f.step for f in found} == {0, 1, 2}


@pytest.mark.parametrize("fault", ["result", "NaN", "memory", "second step"])
def test_a_wrong_implementation_does_not_hold(monkeypatch, fault):
    module = importlib.import_module("day0.kernels.recurrence.chunked")
    right = module.recurrence

    def wrong(a, *ports, batch, state, **weights):
        o = right(a, *ports, batch=batch, state=state, **weights)
        if fault == "result":
            o[-1, -1] *= 1.01
        elif fault == "NaN":
            o[0, 0] = float("nan")
        elif fault == "memory":
            state[batch.slots[0], 0, 0, 0] *= 1.01
        elif batch.context_lens.sum() > 0:
            o = o * 1.01
        return o

    from day0.kernels.registry import resolve

    resolve.cache_clear()
    monkeypatch.setattr(module, "recurrence", wrong)
    found = check("recurrence", "torch_chunked", CASES["recurrence"], dtype=torch.float32)
    resolve.cache_clear()
    bad = {(f.step, f.what) for f in found if not f.holds}
    expected = {
        "result": {(i, "output 0") for i in range(3)},
        "NaN": {(i, "output 0") for i in range(3)},
        "second step": {(1, "output 0"), (2, "output 0")},
    }
    assert bad == expected[fault] if fault in expected else {(0, "state"), (1, "output 0")} <= bad


def test_a_read_of_what_nobody_wrote_shows(monkeypatch):
    """A fresh sequence's slot holds NaN; an implementation that reads it cannot hide that."""
    module = importlib.import_module("day0.kernels.recurrence.chunked")
    right = module.recurrence

    def reads_the_slot(a, *ports, batch, state, **weights):
        o = right(a, *ports, batch=batch, state=state.clone(), **weights)
        return o + 0.0 * state[batch.slots[0]].sum()

    from day0.kernels.registry import resolve

    resolve.cache_clear()
    monkeypatch.setattr(module, "recurrence", reads_the_slot)
    found = check("recurrence", "torch_chunked", CASES["recurrence"], dtype=torch.float32)
    resolve.cache_clear()
    assert not found[0].holds
