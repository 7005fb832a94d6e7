# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""First pass over a prefill with decays per channel: see triton_prefill_chunk.

Blocks of 32 tokens whose log decays are bounded take half of the block's sum as the only pivot: both factors stay
within exp(+-80). Without a bound, each half of each half takes the boundary of the two as pivot, which leaves no factor
above 1. Between the two blocks of a chunk the pivot is their boundary.
"""

import triton
import triton.language as tl

from day0.kernels.common.triton_math import exp2_fast, reciprocal_fast
from day0.kernels.recurrence.triton_prefill_chunk import (
    BLOCK,
    CHUNK,
    chunk_base,
    inverse_norms,
    log_decay,
    operand,
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
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _products_unbounded(q, k, g, PRECISION: tl.constexpr, KIND: tl.constexpr, K: tl.constexpr):
    """Products sum_d k_id k_jd exp(G_id - G_jd) and below them the same with q_i, right for j <= i, [64, 32]; and the
    sums of `g` [32, K] over the tokens up to each one, over those after it, and over all.

    Sums within ever larger halves: no difference of sums is taken, in which the last tokens would lose digits.
    """
    row = tl.arange(0, 2 * _BLOCK)[:, None]
    j = tl.arange(0, _BLOCK)[None, :]
    products = tl.where(row == j + _BLOCK, tl.sum(stack(q * 0.0, q * k), 1)[:, None], 0.0)
    i = tl.arange(0, _BLOCK)[:, None]
    pair = row % _BLOCK
    until = g
    after = tl.zeros([_BLOCK, K], tl.float32)
    for level in tl.static_range(0, 5):
        half = 1 << level
        late = i % (2 * half) >= half
        factor = tl.exp(tl.where(late, until, after))
        x = k * factor
        here = tl.dot(stack(x, q * factor).to(KIND), tl.trans(x.to(KIND)), input_precision=PRECISION)
        coupled = (pair // (2 * half) == j // (2 * half)) & (pair // half > j // half)
        products += tl.where(coupled, here, 0.0)
        early_sum = _sums_of_blocks(tl.where(late, 0.0, g), 2 << level, K)
        late_sum = _sums_of_blocks(tl.where(late, g, 0.0), 2 << level, K)
        until += tl.where(late, early_sum, 0.0)
        after += tl.where(late, 0.0, late_sum)
    return products, until, after, tl.sum(g, 0)


@triton.jit
def _sums_of_blocks(x, SIZE: tl.constexpr, K: tl.constexpr):
    """Each row of [32, K] replaced by the sum over its block of SIZE rows."""
    blocks = tl.reshape(x, [_BLOCK // SIZE, SIZE, K])
    sums = tl.sum(blocks, 1)[:, None, :]
    return tl.reshape(tl.broadcast_to(sums, [_BLOCK // SIZE, SIZE, K]), [_BLOCK, K])


@triton.jit
def _squares(x):
    wide = x.to(tl.float32)
    return tl.sum(wide * wide, 1)


@triton.jit
def _channel_block(
    q, k, decay, products, bias, rate, lower_bound, real,
    KIND: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, FORM: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Of a slice of the channels of 32 tokens, q, k, decay [32, SLICE]: the products k k and q k within the block, on
    top of `products` [64, 32]; k and q decayed from its start, k decayed to its end, float32 [32, SLICE]; the decay of
    the block [SLICE]."""
    real = real[:, None]
    xq = q.to(tl.float32)
    xk = k.to(tl.float32)
    f = decay.to(tl.float32)
    if BOUNDED:
        # In powers of two from here on.
        g = (lower_bound * _LOG2E) * reciprocal_fast(1.0 + exp2_fast((f + bias[None, :]) * (rate * -_LOG2E)))
        g = tl.where(real, g, 0.0)
        since_start = tl.cumsum(g, 0)
        total = 0.5 * tl.sum(tl.where(tl.arange(0, _BLOCK)[:, None] == _BLOCK - 1, since_start, 0.0), 0)
        exponent = since_start - total[None, :]
        grown = exp2_fast(exponent)
        shrunk = xk * exp2_fast(-exponent)
        to_half = exp2_fast(total)
        dq = xq * grown
        dk = xk * grown
        right = tl.trans(operand(shrunk, WIDE, PRECISION))
        products = tl.dot(operand(stack(dk, dq), WIDE, PRECISION), right, acc=products, input_precision=PRECISION)
        dq *= to_half[None, :]
        dk *= to_half[None, :]
        ke = shrunk * to_half[None, :]
        whole = to_half * to_half
    else:
        g = tl.where(real, log_decay(f, rate, bias[None, :], lower_bound, FORM), 0.0)
        more, until, after, total = _products_unbounded(xq, xk, g, PRECISION, KIND, q.shape[1])
        products += more
        grown = tl.exp(until)
        dq = xq * grown
        dk = xk * grown
        ke = xk * tl.exp(after)
        whole = tl.exp(total)
    return products, dk, dq, ke, whole


@triton.jit
def channel_blocks(
    q, k, decay, beta, A_log, dt_bias, cu_seqlens, scaled, mixing, row_scales, chunk_decay,
    q_stride, k_stride, decay_stride, beta_stride, sequences, first_chunk, heads, group,
    scale, eps, lower_bound, beta_scale,
    K: tl.constexpr, SLICE: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    DELTA: tl.constexpr, FORM: tl.constexpr, BETA: tl.constexpr, NORM: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Decay per channel; one program per chunk and value head. Shapes: see triton_prefill.Workspace.

    Channels are taken slice by slice: whole rows of all that a chunk needs would not fit the registers.
    """
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
    i = tl.arange(0, _BLOCK)
    rows0 = start + offset + i
    rows1 = rows0 + _BLOCK
    real0 = offset + i < length
    real1 = offset + _BLOCK + i < length
    beta0 = write_strength(beta, beta_stride, rows0, real0, head, beta_scale, BETA)
    beta1 = write_strength(beta, beta_stride, rows1, real1, head, beta_scale, BETA)
    rate = 1.0
    if FORM != "given":
        rate = tl.exp(tl.load(A_log + head))

    early_pairs = tl.zeros([2 * _BLOCK, _BLOCK], tl.float32)
    late_pairs = early_pairs
    mixed_pairs = early_pairs
    nq0 = tl.zeros([_BLOCK], tl.float32)
    nq1, nk0, nk1 = nq0, nq0, nq0
    for first in range(0, K, SLICE):
        d = first + tl.arange(0, SLICE)
        bias = tl.zeros([SLICE], tl.float32)
        if FORM != "given":
            bias = tl.load(dt_bias + head * K + d)
        q_at = q + rows0[:, None] * q_stride + (key_head * K + d)[None, :]
        k_at = k + rows0[:, None] * k_stride + (key_head * K + d)[None, :]
        decay_at = decay + rows0[:, None] * decay_stride + (head * K + d)[None, :]
        # All of a slice at once, before its first product waits for some of it.
        q0 = tl.load(q_at, real0[:, None], other=0.0)
        k0 = tl.load(k_at, real0[:, None], other=0.0)
        f0 = tl.load(decay_at, real0[:, None], other=0.0)
        q1 = tl.load(q_at + _BLOCK * q_stride, real1[:, None], other=0.0)
        k1 = tl.load(k_at + _BLOCK * k_stride, real1[:, None], other=0.0)
        f1 = tl.load(decay_at + _BLOCK * decay_stride, real1[:, None], other=0.0)
        if NORM:
            nq0 += _squares(q0)
            nk0 += _squares(k0)
            nq1 += _squares(q1)
            nk1 += _squares(k1)
        keys = scaled + place * (3 * _CHUNK * K) + i[:, None] * K + d[None, :]
        reads = keys + _CHUNK * K
        writes = keys + 2 * _CHUNK * K
        early_pairs, dk, dq, ke0, whole0 = _channel_block(
            q0, k0, f0, early_pairs, bias, rate, lower_bound, real0,
            KIND, WIDE, PRECISION, FORM, BOUNDED,
        )  # fmt: skip
        if DELTA:
            tl.store(keys, dk.to(KIND))
        tl.store(reads, dq.to(KIND))
        early = tl.trans(ke0.to(KIND))
        late_pairs, dk, dq, ke1, whole1 = _channel_block(
            q1, k1, f1, late_pairs, bias, rate, lower_bound, real1, KIND, WIDE, PRECISION, FORM, BOUNDED,
        )  # fmt: skip
        tl.store(writes, (ke0 * whole1[None, :]).to(KIND))
        tl.store(writes + _BLOCK * K, ke1.to(KIND))
        tl.store(reads + _BLOCK * K, (dq * whole0[None, :]).to(KIND))
        tl.store(chunk_decay + place * K + d, whole0 * whole1)
        if DELTA:
            tl.store(keys + _BLOCK * K, (dk * whole0[None, :]).to(KIND))
        mixed_pairs = tl.dot(stack(dk, dq).to(KIND), early, acc=mixed_pairs, input_precision=PRECISION)

    nq0, nk0, nq1, nk1 = inverse_norms(nq0, nk0, nq1, nk1, scale, eps, NORM)
    # What is written is scaled with its key's norm at once: then no product with a key has another scale than a row's.
    written0 = beta0 * nk0
    written1 = beta1 * nk1
    left0 = written0 * nk0
    left1 = written1 * nk1
    store_row_scales(row_scales + place * (4 * _CHUNK), left0, left1, written0, written1, nq0, nq1, nk0, nk1)
    kk0, qk0 = unstack(early_pairs)
    kk1, qk1 = unstack(late_pairs)
    kk10, qk10 = unstack(mixed_pairs)
    lower = i[:, None] >= i[None, :]
    strict = i[:, None] > i[None, :]
    mix = mixing + place * (2 * _CHUNK * _CHUNK)
    store_quarters(
        mix + _CHUNK * _CHUNK,
        tl.where(lower, qk0 * nq0[:, None], 0.0),
        qk10 * nq1[:, None],
        tl.where(lower, qk1 * nq1[:, None], 0.0),
    )
    if DELTA:
        store_inverse(
            mix,
            tl.where(strict, kk0 * left0[:, None], 0.0),
            kk10 * left1[:, None],
            tl.where(strict, kk1 * left1[:, None], 0.0),
            PRECISION,
        )
