"""recurrence in blocks: the token loop's numbers, whatever the block, the length and the decay."""

import pytest
import torch

from day0.kernels.recurrence import chunked, reference
from day0.kernels.registry import get_kind
from tests.kernels.test_recurrence import DECAYS, draw, one, pool

KIND = get_kind("recurrence")


@pytest.mark.parametrize("delta_rule", [False, True])
@pytest.mark.parametrize("decay,decay_form", DECAYS)
def test_blocks_equal_the_token_loop(delta_rule, decay, decay_form):
    a = KIND.parse(
        dict(key_heads=1, value_heads=2, key_dim=5, value_dim=3, delta_rule=delta_rule, decay=decay)
        | dict(decay_form=decay_form, beta="sigmoid", beta_scale=2.0, qk_norm="l2")
    )
    owned, (ports,) = draw(a, [150])
    for length in (1, 2, 31, 32, 33, 150):
        cut = tuple(None if p is None else p[:length] for p in ports)
        start = torch.randn(1, 2, 5, 3, dtype=torch.float64)
        want_state = start.clone()
        want = reference.recurrence(a, *cut, **owned, batch=one(length, context=1), state=want_state)
        # the default; blocks of one token; blocks of which several rounds are prepared
        for block in (chunked.BLOCK, 1, 4):
            state = start.clone()
            o = chunked.recurrence(a, *cut, **owned, batch=one(length, context=1), state=state, block=block)
            # float64 sums whose order differs: a few hundred ulp of 2.2e-16 relative to the largest term
            bound = 1e-13 * max(1.0, float(want.abs().max()), float(want_state.abs().max()))
            assert (o - want).abs().max() < bound
            assert (state - want_state).abs().max() < bound


@pytest.mark.parametrize("decay", ["per_head", "per_channel"])
def test_the_strongest_decays_neither_overflow_nor_lose_what_stays(decay):
    """Log decays of -1000 beside 0: exp(G_i) and exp(-G_j) alone would be 0 and inf in float32."""
    a = KIND.parse(
        dict(key_heads=2, value_heads=2, key_dim=4, value_dim=4, delta_rule=True, decay=decay, decay_form="given")
        | dict(beta="sigmoid", qk_norm="l2")
    )
    owned, (ports,) = draw(a, [100], dtype=torch.float32)
    q, k, v, g, beta = ports
    g = torch.where(torch.rand(g.shape) < 0.5, torch.zeros_like(g), torch.full_like(g, -1000.0))
    want_state, state = pool(a, dtype=torch.float32), pool(a, dtype=torch.float32)
    want = reference.recurrence(a, q, k, v, g, beta, batch=one(100), state=want_state)
    o = chunked.recurrence(a, q, k, v, g, beta, batch=one(100), state=state)
    # float32 sums of a few terms of size ~3: some ulp of 6e-8
    assert (o - want).abs().max() < 1e-5
    assert (state - want_state).abs().max() < 1e-5
    assert want.abs().max() > 0.1


@pytest.mark.parametrize("size", [1, 2, 8, 32])
@pytest.mark.parametrize("width", [1, 6])
def test_decayed_products_is_its_sum(size, width):
    x = torch.randn(2, 3, size, 6, dtype=torch.float64)
    y = torch.randn(3, size, 6, dtype=torch.float64)
    since_start = -(torch.rand(3, size, width, dtype=torch.float64) * 3).cumsum(-2)
    want = torch.zeros(2, 3, size, size, dtype=torch.float64)
    for i in range(size):
        for j in range(i + 1):
            decay = (since_start[:, i] - since_start[:, j]).exp()
            want[..., i, j] = (x[:, :, i] * y[:, j] * decay).sum(-1)
    # sums of 6 products in float64
    assert (chunked.decayed_products(x, y, since_start) - want).abs().max() < 1e-13
