"""Plain PyTorch recurrence, one token at a time, in float32 (float64 for float64 inputs)."""

import torch
from torch import Tensor

from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence.inputs import step_inputs
from day0.kernels.recurrence.schema import RecurrenceAttributes


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
    """Per value head: S <- exp(g) S; S <- S + k (x) beta (v - k^T S), or S + k (x) beta v; o = q^T S.

    The decay comes first, the delta rule reads the decayed state, the query reads the new one. One algebra for Gated
    DeltaNet, Kimi delta attention, Mamba-2 and Lightning Attention; transformers' torch_recurrent_gated_delta_rule
    and recurrent_kimi_delta_attention are two of its rows. Raises ValueError when a port does not fit the attributes.
    """
    x = step_inputs(a, q, k, v, decay, beta, A_log, dt_bias, D)
    o = torch.empty_like(x.v)
    for sequence, (start, end, context) in enumerate(batch.spans()):
        slot = batch.slots[sequence]
        s = state[slot].to(o.dtype) if context > 0 else o.new_zeros(a.value_heads, a.key_dim, a.value_dim)
        for t in range(start, end):
            key = x.k[t].unsqueeze(-1)
            s = s * x.log_decay[t].exp().unsqueeze(-1)
            written = x.v[t] - (key * s).sum(1) if a.delta_rule else x.v[t]
            s = s + key * (x.beta[t] * written).unsqueeze(1)
            o[t] = (x.q[t].unsqueeze(-1) * s).sum(1)
        state[slot] = s
    return x.output(o).to(v.dtype)
