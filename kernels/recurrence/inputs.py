"""From ports and weights to what each step of the recurrence uses, for every implementation in plain PyTorch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from day0.kernels.common.numerics import upcast
from day0.kernels.recurrence.schema import RecurrenceAttributes


@dataclass(frozen=True)
class StepInputs:
    """One row per token and value head, in the dtype the arithmetic runs in."""

    q: Tensor  # [N, Hv, Dk], normalised and scaled
    k: Tensor  # [N, Hv, Dk], normalised
    v: Tensor  # [N, Hv, Dv], times the time step where there is one
    log_decay: Tensor  # [N, Hv, Dk] or [N, Hv, 1], zero where nothing decays
    beta: Tensor  # [N, Hv, 1]
    skip: Tensor | None  # [N, Hv, Dv]: what is added to the output

    def output(self, o: Tensor) -> Tensor:
        """The result [N, Hv, Dv] of the recurrence with the skip added, [N, Hv * Dv]."""
        return (o if self.skip is None else o + self.skip).flatten(1)


def step_inputs(
    a: RecurrenceAttributes,
    q: Tensor,  # [N, Hk * Dk]
    k: Tensor,  # [N, Hk * Dk]
    v: Tensor,  # [N, Hv * Dv]
    decay: Tensor | None,  # [N, Hv] or [N, Hv * Dk]
    beta: Tensor | None,  # [N, Hv]
    A_log: Tensor | None,  # [Hv]
    dt_bias: Tensor | None,  # [Hv] or [Hv * Dk]
    D: Tensor | None,  # [Hv]
) -> StepInputs:
    """Raises ValueError when a port is given that the attributes leave out, or the other way round."""
    _expect("decay", decay, wanted=a.decay_width > 0)
    _expect("beta", beta, wanted=a.beta != "none")
    group = a.value_heads // a.key_heads
    query, key = (upcast(x).reshape(-1, a.key_heads, a.key_dim) for x in (q, k))
    if a.qk_norm == "l2":
        query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + a.qk_norm_eps) for x in (query, key))
    query = query * (a.key_dim**-0.5 if a.scale is None else a.scale)
    value = upcast(v).reshape(-1, a.value_heads, a.value_dim)
    log_decay, time_step = _log_decay(a, value, decay, A_log, dt_bias)
    return StepInputs(
        q=query.repeat_interleave(group, dim=1),
        k=key.repeat_interleave(group, dim=1),
        v=value if time_step is None else value * time_step,
        log_decay=log_decay,
        beta=_beta(a, value, beta),
        skip=None if D is None else upcast(D)[:, None] * value,
    )


def _expect(name: str, port: Tensor | None, *, wanted: bool) -> None:
    if (port is not None) != wanted:
        raise ValueError(f"recurrence: port {name} is {'missing' if wanted else 'given, and its attributes have none'}")


def _log_decay(
    a: RecurrenceAttributes, value: Tensor, decay: Tensor | None, A_log: Tensor | None, dt_bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Log decay g [N, Hv, Dk or 1] and the time step [N, Hv, 1], if the value is to be multiplied by one.

    Softplus form: Gated DeltaNet (arXiv 2412.06464) and Kimi Linear (arXiv 2510.26692); bounded sigmoid: the safe gate
    of transformers' glm5_next and bailing_hybrid; time step: Mamba-2 (arXiv 2405.21060); constant: Lightning
    Attention (arXiv 2401.04658).
    """
    if decay is None:
        g = value.new_zeros(value.shape[0], a.value_heads, 1)
        if a.decay == "constant":
            slopes = [a.slope_scale * 2.0 ** (-8.0 * (h + 1) / a.value_heads) for h in range(a.value_heads)]
            g = g - value.new_tensor(slopes)[:, None]
        return g, None
    f = upcast(decay).reshape(value.shape[0], a.value_heads, a.decay_width // a.value_heads)
    if a.decay_form == "given":
        return f, None
    assert A_log is not None and dt_bias is not None
    rate = upcast(A_log).exp()[:, None]
    f = f + upcast(dt_bias).reshape(a.value_heads, -1)
    if a.decay_form == "bounded_sigmoid":
        return a.lower_bound * torch.sigmoid(rate * f), None
    step = torch.nn.functional.softplus(f)
    if a.decay_form == "softplus":
        return -rate * step, None
    step = step.clamp(a.time_step_min, a.time_step_max)
    return -rate * step, step


def _beta(a: RecurrenceAttributes, value: Tensor, beta: Tensor | None) -> Tensor:
    if beta is None:
        return value.new_ones(value.shape[0], a.value_heads, 1)
    strength = upcast(beta).unsqueeze(-1)
    return a.beta_scale * torch.sigmoid(strength) if a.beta == "sigmoid" else strength
