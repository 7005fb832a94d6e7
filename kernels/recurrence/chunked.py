"""The recurrence a block of tokens at a time: the same numbers as the token loop, in matrix products.

Within a block let G_i be the sum of the log decays up to token i. Unrolled, the state before the block read by a key is
(k_i exp(G_i))^T S, an earlier write j of the block is read with weight a_ij = sum_d k_id k_jd exp(G_id - G_jd), and so
the writes u of the delta rule solve the unit lower triangular system u_i + beta_i sum_{j<i} a_ij u_j =
beta_i (v_i - (k_i exp(G_i))^T S) (the WY form of arXiv 2406.06484, with the decays of arXiv 2412.06464 and 2510.26692).
"""

import torch
from torch import Tensor

from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence.inputs import StepInputs, step_inputs
from day0.kernels.recurrence.schema import RecurrenceAttributes

# On a CPU: longer blocks spend more in the triangular solve, shorter ones more in the steps between blocks.
BLOCK = 32
# Blocks prepared together: bounds the memory that a long prompt takes.
BLOCKS_AT_ONCE = 16


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
    block: int = BLOCK,  # a power of two
) -> Tensor:  # [N, Hv * Dv]
    """As the reference's `recurrence`, in blocks. Raises ValueError when a port does not fit the attributes."""
    x = step_inputs(a, q, k, v, decay, beta, A_log, dt_bias, D)
    o = torch.empty_like(x.v)
    for sequence, (start, end, context) in enumerate(batch.spans()):
        slot = batch.slots[sequence]
        s = state[slot].to(o.dtype) if context > 0 else o.new_zeros(a.value_heads, a.key_dim, a.value_dim)
        for first in range(start, end, block * BLOCKS_AT_ONCE):
            last = min(first + block * BLOCKS_AT_ONCE, end)
            o[first:last], s = _blocks(a, x, first, last, s, min(block, 1 << (last - first - 1).bit_length()))
        state[slot] = s
    return x.output(o).to(v.dtype)


def _blocks(
    a: RecurrenceAttributes, x: StepInputs, first: int, last: int, s: Tensor, block: int
) -> tuple[Tensor, Tensor]:
    """Outputs [last - first, Hv, Dv] of tokens first..last-1, and the state [Hv, Dk, Dv] after them."""
    # Padding has zero keys, values and log decays: it writes nothing and decays nothing.
    q, k, v, g, beta = (
        _in_blocks(t[first:last], block) for t in (x.q, x.k, x.v, x.log_decay, x.beta)
    )  # each [blocks, Hv, block, ...]
    since_start = g.cumsum(-2)
    grown = since_start.exp()
    to_end = (since_start[..., -1:, :] - since_start).exp()

    writes, reads = beta * v, beta * k * grown
    overlap, scores = decayed_products(torch.stack((beta * k, q)), k, since_start)
    if a.delta_rule:
        both = torch.linalg.solve_triangular(overlap, torch.cat((writes, reads), -1), upper=False, unitriangular=True)
        writes, reads = both.split([a.value_dim, a.key_dim], -1)
    queries, keys = q * grown, (k * to_end).mT
    block_decay = grown[..., -1, :].unsqueeze(-1)

    o = torch.empty_like(v)
    for b in range(v.shape[0]):
        u = writes[b] - reads[b] @ s if a.delta_rule else writes[b]
        o[b] = queries[b] @ s + scores[b] @ u
        s = block_decay[b] * s + keys[b] @ u
    return o.transpose(1, 2).flatten(0, 1)[: last - first], s


def _in_blocks(t: Tensor, block: int) -> Tensor:
    """[L, Hv, C] -> [blocks, Hv, block, C], zeros after the last token."""
    padded = torch.nn.functional.pad(t, (0, 0, 0, 0, 0, -t.shape[0] % block))
    return padded.reshape(-1, block, *t.shape[1:]).transpose(1, 2).contiguous()


def decayed_products(x: Tensor, y: Tensor, since_start: Tensor) -> Tensor:
    """p_ij = sum_d x_id y_jd exp(G_id - G_jd) for j <= i, zero above the diagonal; [..., C, D] -> [..., C, C].

    `since_start` G [..., C, D or 1] never grows along C, and C is a power of two; y and G may lack leading axes of x.
    Halves the block: between the halves the decay splits at the last token of the first, both factors being at most
    1, so that nothing overflows however strong the decay is, and no [C, C, D] tensor is made.
    """
    size = x.shape[-2]
    if size == 1:
        return (x * y).sum(-1, keepdim=True)
    half = size // 2
    within = decayed_products(*(t.reshape(*t.shape[:-2], 2, half, t.shape[-1]) for t in (x, y, since_start)))
    pivot = since_start[..., half - 1 : half, :]
    late = x[..., half:, :] * (since_start[..., half:, :] - pivot).exp()
    early = y[..., :half, :] * (pivot - since_start[..., :half, :]).exp()
    products = x.new_zeros(*x.shape[:-1], size)
    products[..., :half, :half] = within[..., 0, :, :]
    products[..., half:, half:] = within[..., 1, :, :]
    products[..., half:, :half] = late @ early.mT
    return products
