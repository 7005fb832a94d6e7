"""Problems at the edges of the decode kernel's contract, for the step-by-step check against float64."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from day0.kernels.common.conformance import Case
from day0.kernels.recurrence.schema import RecurrenceAttributes, weights


def draw_ports(a: RecurrenceAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    """Random ports of one sequence: unit-size keys where nothing normalises them, decays that forget slowly."""

    def normal(width: int) -> Tensor:
        return torch.randn(n, width, generator=generator, dtype=torch.float64)

    q, k = normal(a.key_heads * a.key_dim), normal(a.key_heads * a.key_dim)
    if a.qk_norm == "none":
        k = k * a.key_dim**-0.5
    decay = normal(a.decay_width) if a.decay_width else None
    if decay is not None and a.decay_form == "given":
        decay = -decay.abs()
    beta = normal(a.value_heads) if a.beta != "none" else None
    if beta is not None and a.beta == "given":
        beta = beta.sigmoid()
    return q, k, normal(a.value_heads * a.value_dim), decay, beta


def draw_weights(a: RecurrenceAttributes, generator: torch.Generator) -> Mapping[str, Tensor]:
    """Random weights of the sizes that trained models have."""
    return {n: torch.randn(w.shape, generator=generator, dtype=torch.float64) * 0.5 for n, w in weights(a).items()}


KDA: dict[str, Any] = dict(
    key_heads=2, value_heads=2, key_dim=64, value_dim=64, delta_rule=True, decay="per_channel",
    decay_form="bounded_sigmoid", beta="sigmoid", qk_norm="l2",
)  # fmt: skip
GDN: dict[str, Any] = dict(
    key_heads=1, value_heads=2, key_dim=128, value_dim=64, delta_rule=True, decay="per_head", decay_form="softplus",
    beta="sigmoid", qk_norm="l2",
)  # fmt: skip
MAMBA2: dict[str, Any] = dict(
    key_heads=1, value_heads=4, key_dim=64, value_dim=32, delta_rule=False, decay="per_head", decay_form="time_step",
    time_step_min=0.001, time_step_max=0.1, scale=1.0, skip=True,
)  # fmt: skip
LIGHTNING: dict[str, Any] = dict(
    key_heads=4, value_heads=4, key_dim=32, value_dim=48, delta_rule=False, decay="constant", scale=1.0
)


def _case(
    name: str, attributes: Mapping[str, Any], *chunks: tuple[int, ...], phase: Literal["decode", "verify"] = "decode"
) -> Case:
    """Sequences that sit a step out decode too: as padding of a captured graph does."""
    return Case(name, attributes, chunks or ((1, 1, 1), (1, 1), (0, 1)), draw_ports, draw_weights, phase=phase)


CASES: tuple[Case, ...] = (
    _case("kda safe gate", KDA),
    _case("kda softplus, negative eigenvalues", KDA | {"decay_form": "softplus", "beta_scale": 2.0}),
    _case("kda decay given", KDA | {"decay_form": "given", "beta": "given", "scale": 0.3}),
    _case("gdn grouped values", GDN),
    _case("mamba-2 time step and skip", MAMBA2),
    _case("lightning, dims no power of two", LIGHTNING),
    _case("delta rule without decay", KDA | {"decay": "none", "decay_form": "given", "qk_norm": "none"}),
    _case("head dims 256", GDN | {"key_heads": 2, "value_heads": 4, "key_dim": 256, "value_dim": 256}, (1, 1), (1,)),
    _case("verify, ragged", KDA, (3, 4), (1, 2, 1), (16,), phase="verify"),
)
