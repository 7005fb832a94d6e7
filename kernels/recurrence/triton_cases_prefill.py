"""Problems at the edges of the prefill kernels' contract, for the step-by-step check against float64."""

from collections.abc import Mapping
from typing import Any

from day0.kernels.common.conformance import Case
from day0.kernels.recurrence.triton_cases import draw_ports, draw_weights

_DELTA: dict[str, Any] = dict(
    key_heads=2, value_heads=2, key_dim=64, value_dim=64, delta_rule=True, beta="sigmoid", qk_norm="l2"
)
KDA = _DELTA | dict(decay="per_channel", decay_form="bounded_sigmoid", key_dim=32)
GDN = _DELTA | dict(decay="per_head", key_heads=1)
MAMBA2: dict[str, Any] = dict(
    key_heads=1, value_heads=3, key_dim=64, value_dim=32, delta_rule=False, decay="per_head", decay_form="time_step",
    time_step_min=0.001, time_step_max=0.5, scale=1.0, skip=True,
)  # fmt: skip

# Per sequence, its tokens in each step: around a block of 32 and a chunk of 64; one sits the second step out.
_EDGES = ((1, 64), (31, 2), (33, 0), (63, 1), (64, 65))


def _case(name: str, attributes: Mapping[str, Any], *chunks: tuple[int, ...]) -> Case:
    return Case(name, attributes, chunks or _EDGES, draw_ports, draw_weights, phase="prefill")


CASES: tuple[Case, ...] = (
    _case("prefill, kda safe gate", KDA),
    _case("prefill, kda softplus", KDA | {"decay_form": "softplus", "beta_scale": 2.0}, (66, 33)),
    _case("prefill, kda decay given, grouped values", KDA | {"decay_form": "given", "key_heads": 1}, (40,)),
    _case("prefill, gated linear attention", KDA | {"delta_rule": False, "beta": "none", "qk_norm": "none"}, (65, 1)),
    _case("prefill, gdn grouped values", GDN),
    _case("prefill, delta rule without decay", GDN | {"decay": "none", "beta": "given"}, (65,)),
    _case("prefill, mamba-2 time step and skip", MAMBA2),
    _case("prefill, lightning", MAMBA2 | {"key_heads": 3, "decay": "constant", "skip": False}, (65, 3)),
    _case("prefill, kda head dims 128 and 256", KDA | {"key_dim": 128, "value_dim": 256}, (66,)),
    _case("prefill, gdn head dims 256 and 128", GDN | {"key_dim": 256, "value_dim": 128}, (66,)),
)
