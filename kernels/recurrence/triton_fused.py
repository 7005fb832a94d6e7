"""The implementation "triton": the reference's function, by the launch that suits the phase."""

import torch
from torch import Tensor

from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence.schema import RecurrenceAttributes
from day0.kernels.recurrence.triton_decode import launch
from day0.kernels.recurrence.triton_prefill import fits, prefill


def recurrence(
    a: RecurrenceAttributes,
    q: Tensor,  # [N, Hk * Dk]
    k: Tensor,  # [N, Hk * Dk]
    v: Tensor,  # [N, Hv * Dv]
    decay: Tensor | None = None,  # [N, Hv] or [N, Hv * Dk]
    beta: Tensor | None = None,  # [N, Hv]
    *,
    A_log: Tensor | None = None,  # [Hv]
    dt_bias: Tensor | None = None,  # [Hv] or [Hv * Dk]
    D: Tensor | None = None,  # [Hv]
    batch: Batch,
    state: Tensor,  # [slots, Hv, Dk, Dv], updated in place
) -> Tensor:  # [N, Hv * Dv]
    """As the reference's `recurrence`. Raises ContractError on what the kernels cannot take.

    Phase "verify" moves the state past all its tokens, as the reference does; `triton_verify` holds back.
    """
    if batch.phase == "prefill" and fits(a):
        return prefill(a, q, k, v, decay, beta, A_log=A_log, dt_bias=dt_bias, D=D, batch=batch, state=state)
    out = torch.empty_like(v)
    launch(a, q, k, v, decay, beta, A_log=A_log, dt_bias=dt_bias, D=D, batch=batch, state=state, out=out)
    return out
