# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""First pass over a prefill with a decay per head, a constant one or none: see triton_prefill_chunk.

Keys and queries stay where they are: their norms and decays are row scales for the second pass.
"""

import triton
import triton.language as tl

from day0.kernels.recurrence.triton_pieces import softplus
from day0.kernels.recurrence.triton_prefill_chunk import (
    BLOCK,
    CHUNK,
    STRONGEST,
    chunk_base,
    inverse_norms,
    log_decay,
    sequence_of,
    stack,
    store_inverse,
    store_quarters,
    store_row_scales,
    unstack,
    write_strength,
)

_CHUNK = tl.constexpr(CHUNK)
_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def _head_block(
    decay, beta, rows, real, decay_stride, beta_stride, head, rate, bias, lower_bound, constant, beta_scale,
    step_min, step_max, FORM: tl.constexpr, BETA: tl.constexpr,
):  # fmt: skip
    """Of 32 tokens: the log decays, and the strengths of write and value."""
    strength = write_strength(beta, beta_stride, rows, real, head, beta_scale, BETA)
    value = strength
    if FORM == "constant":
        g = tl.zeros([_BLOCK], tl.float32) + constant
    else:
        f = tl.load(decay + rows * decay_stride + head, real, other=0.0).to(tl.float32)
        if FORM == "time_step":
            step = softplus(f + bias)
            step = tl.where(step < step_min, step_min, step)
            step = tl.where(step > step_max, step_max, step)
            value = strength * step
            g = -rate * step
            g = tl.where(g < STRONGEST, STRONGEST, g)
        else:
            g = log_decay(f, rate, bias, lower_bound, FORM)
    return tl.where(real, g, 0.0), strength, value


@triton.jit
def _squares(x):
    wide = x.to(tl.float32)
    return tl.sum(wide * wide, 1)


@triton.jit
def _decay_between(g, since, strict, PRECISION: tl.constexpr):
    """exp(sum of g over j < t <= i) for j <= i, [32, 32]. In float32 each column sums from its own token on, so that
    the last tokens lose no digits in a difference of long sums; 16-bit products do not see them."""
    if PRECISION == "ieee":
        between = tl.cumsum(tl.where(strict, g[:, None], 0.0), 0)
    else:
        between = tl.where(strict, since[:, None] - since[None, :], 0.0)
    return tl.exp(between)


@triton.jit
def head_blocks(
    q, k, decay, beta, A_log, dt_bias, cu_seqlens, mixing, row_scales, chunk_decay,
    q_stride, k_stride, decay_stride, beta_stride, sequences, first_chunk, heads, group,
    scale, eps, lower_bound, beta_scale, step_min, step_max, slope_scale,
    K: tl.constexpr, SLICE: tl.constexpr, PRECISION: tl.constexpr, DELTA: tl.constexpr, FORM: tl.constexpr,
    BETA: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Decay per head, constant or none; one program per chunk and value head. Keys and queries stay where they are:
    norms and decays are row scales for the second pass."""
    head = tl.program_id(0) % heads
    chunk = tl.program_id(0) // heads + first_chunk
    sequence = sequence_of(cu_seqlens, sequences, chunk)
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    offset = (chunk - chunk_base(cu_seqlens, sequence)) * _CHUNK
    if offset >= length:
        return
    key_head = head // group
    place = (chunk - first_chunk).to(tl.int64) * heads + head
    rate = 1.0
    bias = 0.0
    constant = 0.0
    if FORM == "constant":
        constant = -slope_scale * tl.exp2(-8.0 * (head + 1).to(tl.float32) / heads)
        constant = tl.where(constant < STRONGEST, STRONGEST, constant)
    elif FORM != "given":
        rate = tl.exp(tl.load(A_log + head))
        bias = tl.load(dt_bias + head)

    i = tl.arange(0, _BLOCK)
    rows = start + offset + i
    real0 = offset + i < length
    real1 = offset + _BLOCK + i < length
    g0, s0, v0 = _head_block(
        decay, beta, rows, real0, decay_stride, beta_stride, head, rate, bias, lower_bound, constant, beta_scale,
        step_min, step_max, FORM, BETA,
    )  # fmt: skip
    g1, s1, v1 = _head_block(
        decay, beta, rows + _BLOCK, real1, decay_stride, beta_stride, head, rate, bias, lower_bound, constant,
        beta_scale, step_min, step_max, FORM, BETA,
    )  # fmt: skip
    early_pairs = tl.zeros([2 * _BLOCK, _BLOCK], tl.float32)
    late_pairs = early_pairs
    mixed_pairs = early_pairs
    nq0 = tl.zeros([_BLOCK], tl.float32)
    nq1, nk0, nk1 = nq0, nq0, nq0
    for first in range(0, K, SLICE):
        d = key_head * K + first + tl.arange(0, SLICE)
        q_at = q + rows[:, None] * q_stride + d[None, :]
        k_at = k + rows[:, None] * k_stride + d[None, :]
        q0 = tl.load(q_at, real0[:, None], other=0.0)
        k0 = tl.load(k_at, real0[:, None], other=0.0)
        q1 = tl.load(q_at + _BLOCK * q_stride, real1[:, None], other=0.0)
        k1 = tl.load(k_at + _BLOCK * k_stride, real1[:, None], other=0.0)
        if NORM:
            nq0 += _squares(q0)
            nk0 += _squares(k0)
            nq1 += _squares(q1)
            nk1 += _squares(k1)
        late = stack(k1, q1)
        early_pairs = tl.dot(stack(k0, q0), tl.trans(k0), acc=early_pairs, input_precision=PRECISION)
        late_pairs = tl.dot(late, tl.trans(k1), acc=late_pairs, input_precision=PRECISION)
        mixed_pairs = tl.dot(late, tl.trans(k0), acc=mixed_pairs, input_precision=PRECISION)
    kk0, qk0 = unstack(early_pairs)
    kk1, qk1 = unstack(late_pairs)
    kk10, qk10 = unstack(mixed_pairs)
    nq0, nk0, nq1, nk1 = inverse_norms(nq0, nk0, nq1, nk1, scale, eps, NORM)
    since0 = tl.cumsum(g0, 0)
    since1 = tl.cumsum(g1, 0)
    to_end0 = tl.cumsum(g0, 0, reverse=True) - g0
    to_end1 = tl.cumsum(g1, 0, reverse=True) - g1
    total0 = tl.sum(g0, 0)
    total1 = tl.sum(g1, 0)

    store_row_scales(
        row_scales + place * (4 * _CHUNK),
        s0 * nk0 * tl.exp(since0),
        s1 * nk1 * tl.exp(since1 + total0),
        v0,
        v1,
        nq0 * tl.exp(since0),
        nq1 * tl.exp(since1 + total0),
        nk0 * tl.exp(to_end0 + total1),
        nk1 * tl.exp(to_end1),
    )
    tl.store(chunk_decay + place, tl.exp(total0 + total1))

    lower = i[:, None] >= i[None, :]
    strict = i[:, None] > i[None, :]
    within0 = _decay_between(g0, since0, strict, PRECISION) * nk0[None, :]
    within1 = _decay_between(g1, since1, strict, PRECISION) * nk1[None, :]
    across = tl.exp(since1[:, None] + to_end0[None, :]) * nk0[None, :]
    mix = mixing + place * (2 * _CHUNK * _CHUNK)
    store_quarters(
        mix + _CHUNK * _CHUNK,
        tl.where(lower, qk0 * within0 * nq0[:, None], 0.0),
        qk10 * across * nq1[:, None],
        tl.where(lower, qk1 * within1 * nq1[:, None], 0.0),
    )
    if DELTA:
        left0 = (s0 * nk0)[:, None]
        left1 = (s1 * nk1)[:, None]
        store_inverse(
            mix,
            tl.where(strict, kk0 * within0 * left0, 0.0),
            kk10 * across * left1,
            tl.where(strict, kk1 * within1 * left1, 0.0),
            PRECISION,
        )
