"""How a bfloat16 state drifts from a float32 one over many decoded tokens."""

import pytest
import torch

from day0.kernels.common.conformance import relative_l2
from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence import reference
from day0.kernels.recurrence.schema import RecurrenceAttributes, weights
from day0.kernels.recurrence.triton_decode import launch

KDA = RecurrenceAttributes(
    key_heads=2, value_heads=2, key_dim=64, value_dim=64, delta_rule=True, decay="per_channel",
    decay_form="bounded_sigmoid", beta="sigmoid", qk_norm="l2",
)  # fmt: skip


def errors(device, tokens, at, a=KDA):
    """{state dtype: relative error of the state after each of `at` tokens} against float64."""
    generator = torch.Generator().manual_seed(4)
    width = a.key_heads * a.key_dim

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(device)

    ports = [draw(tokens, width), draw(tokens, width), draw(tokens, width), draw(tokens, a.decay_width) - 6.0]
    ports.append(draw(tokens, a.value_heads))
    owned = {name: draw(*w.shape) * 0.3 for name, w in weights(a).items()}
    states = {
        kind: torch.zeros(1, a.value_heads, a.key_dim, a.value_dim, dtype=kind, device=device)
        for kind in (torch.float32, torch.bfloat16, torch.float64)
    }
    found = {kind: [] for kind in states if kind != torch.float64}
    for t in range(tokens):
        batch = Batch.pack([[0]], context_lens=[t], slots=[0], pages=[[]], phase="decode", device=device)
        row = [p[t : t + 1] for p in ports]
        for kind in found:
            out = torch.empty_like(row[2])
            launch(a, *row, **owned, batch=batch, state=states[kind], out=out)
        wide = {name: w.double() for name, w in owned.items()}
        reference.recurrence(a, *(p.double() for p in row), **wide, batch=batch, state=states[torch.float64])
        if t + 1 in at:
            for kind, kept in found.items():
                kept.append(relative_l2(states[kind], states[torch.float64]))
    return found


@pytest.mark.parametrize("device,at", [("cpu", (4, 24)), pytest.param("cuda", (64, 1024), marks=pytest.mark.gpu)])
def test_a_bfloat16_state_drifts_no_faster_than_its_roundings_add_up(device, at):
    found = errors(device, at[-1], at)
    print({str(kind): values for kind, values in found.items()})
    # One rounding of up to 2^-9 a token, independent of each other; interpreted, digits are cut off, 2^-8 at most, and
    # all in one direction.
    for tokens, error in zip(at, found[torch.bfloat16], strict=True):
        assert 2.0**-11 < error < (2.0**-8 * tokens if device == "cpu" else 2.0**-9 * tokens**0.5)
    assert found[torch.float32][-1] < 1e-5
