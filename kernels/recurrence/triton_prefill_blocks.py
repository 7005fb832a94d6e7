# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""First pass over a prefill: what each chunk of 64 tokens needs that does not depend on the state, all chunks at once.

Within a chunk let G_i be the sum of the log decays up to token i, A_ij = beta_i sum_d k_id k_jd exp(G_id - G_jd) for
j < i, and P_ij the same with the query in place of beta_i k_i, for j <= i. The delta rule's writes solve (I + A) u = x
with x_i = beta_i (v_i - (k_i exp(G_i))^T S) (WY form of arXiv 2406.06484, decays of 2412.06464 and 2510.26692), so the
second pass needs R = (I + A)^-1 - I and P, and for decays per channel the decayed keys and queries themselves.

A decay per head splits off as exp(G_i - G_j) on the product of rows. A decay per channel does not: it is put on the
two factors around a pivot. Blocks of 32 tokens whose log decays are bounded take half of the block's sum as the only
pivot: both factors stay within exp(+-80). Without a bound, each half of each half takes the boundary of the two as
pivot, which leaves no factor above 1. Between the two blocks of a chunk the pivot is their boundary.
"""

import triton
import triton.language as tl

from day0.kernels.recurrence.triton_pieces import softplus

CHUNK = 64
BLOCK = 32
# exp of it is the least normal float32: a stronger decay leaves nothing either, and sums of it stay finite.
STRONGEST = tl.constexpr(-88.0)

_CHUNK = tl.constexpr(CHUNK)
_BLOCK = tl.constexpr(BLOCK)
_HALF = tl.constexpr(BLOCK // 2)
_SEARCHED = tl.constexpr(64)


@triton.jit
def chunk_base(cu_seqlens, sequence):
    """Number of a sequence's first chunk. Sequences may leave numbers unused, none shares one with another:
    ceil((b - a) / C) <= floor(b / C) - floor(a / C) + 1, so no prefix sum over the batch is needed."""
    return tl.load(cu_seqlens + sequence) // _CHUNK + sequence


@triton.jit
def _sequence_of(cu_seqlens, sequences, chunk):
    """The last sequence whose first chunk is not behind `chunk`."""
    before = 0
    for start in range(0, sequences, _SEARCHED):
        s = start + tl.arange(0, _SEARCHED)
        real = s < sequences
        first = tl.load(cu_seqlens + s, real, other=0) // _CHUNK + s
        before += tl.sum((real & (first <= chunk)).to(tl.int32))
    return before - 1


@triton.jit
def _log_decay(f, rate, bias, lower_bound, FORM: tl.constexpr):
    """Log decay of the decay port `f`, per channel or per head; a time step has its own path."""
    if FORM == "softplus":
        g = -rate * softplus(f + bias)
    elif FORM == "bounded_sigmoid":
        g = lower_bound * tl.sigmoid(rate * (f + bias))
    else:
        g = f
    return tl.where(g < STRONGEST, STRONGEST, g)  # keeps NaN


@triton.jit
def _write_strength(beta, beta_stride, rows, real, head, beta_scale, BETA: tl.constexpr):
    if BETA == "none":
        b = tl.full([_BLOCK], 1.0, tl.float32)
    else:
        b = tl.load(beta + rows * beta_stride + head, real, other=0.0).to(tl.float32)
        if BETA == "sigmoid":
            b = beta_scale * tl.sigmoid(b)
    return tl.where(real, b, 0.0)


@triton.jit
def _inverse_minus_one(a0, a1, PRECISION: tl.constexpr):
    """(I + a)^-1 - I of two strictly lower triangular [32, 32] matrices.

    With X the inverse of diagonal blocks of h rows and M the part of `a` that couples the two halves of each block of
    2h, X - X M X is the inverse of the blocks of 2h. No power of `a` appears, so that equal keys do no harm. Up to 16
    rows all four blocks are worked on side by side.
    """
    both = tl.reshape(tl.join(a0, a1), [2, _HALF, 2, _HALF, 2])
    left, right = tl.split(tl.permute(both, (4, 1, 3, 0, 2)))
    top, coupling = tl.split(left)
    _, bottom = tl.split(right)
    a = tl.reshape(tl.permute(tl.join(top, bottom), (0, 3, 1, 2)), [4, _HALF, _HALF])
    i = tl.arange(0, _HALF)[None, :, None]
    j = tl.arange(0, _HALF)[None, None, :]
    x = tl.where(i // 2 == j // 2, -a, 0.0)
    for level in tl.static_range(1, 4):
        half = 1 << level
        m = tl.where((i // (2 * half) == j // (2 * half)) & (i // half > j // half), a, 0.0)
        y = m + tl.dot(m, x, input_precision=PRECISION)
        x -= y + tl.dot(x, y, input_precision=PRECISION)
    top, bottom = tl.split(tl.permute(tl.reshape(x, [2, 2, _HALF, _HALF]), (0, 2, 3, 1)))
    y = coupling + tl.dot(coupling, top, input_precision=PRECISION)
    coupling = -(y + tl.dot(bottom, y, input_precision=PRECISION))
    rows = tl.join(tl.join(top, tl.zeros_like(top)), tl.join(coupling, bottom))
    return tl.split(tl.reshape(tl.permute(rows, (4, 1, 3, 2, 0)), [_BLOCK, _BLOCK, 2]))


@triton.jit
def _store_quarters(to, top_left, bottom_left, bottom_right):
    """A lower triangular [64, 64] matrix, row by row, from its quarters."""
    i = tl.arange(0, _BLOCK)[:, None]
    j = tl.arange(0, _BLOCK)[None, :]
    at = to + i * _CHUNK + j
    kind = to.dtype.element_ty
    tl.store(at, top_left.to(kind))
    tl.store(at + _BLOCK, tl.zeros([_BLOCK, _BLOCK], kind))
    tl.store(at + _BLOCK * _CHUNK, bottom_left.to(kind))
    tl.store(at + _BLOCK * _CHUNK + _BLOCK, bottom_right.to(kind))


@triton.jit
def _store_inverse(to, a0, a10, a1, PRECISION: tl.constexpr):
    """R of the chunk from the quarters of A."""
    r0, r1 = _inverse_minus_one(a0, a1, PRECISION)
    y = a10 + tl.dot(a10, r0, input_precision=PRECISION)
    _store_quarters(to, r0, -(y + tl.dot(r1, y, input_precision=PRECISION)), r1)


@triton.jit
def _products_unbounded(q, k, g, PRECISION: tl.constexpr, KIND: tl.constexpr, K: tl.constexpr):
    """Products sum_d k_id k_jd exp(G_id - G_jd) and below them the same with q_i, right for j <= i, [64, 32]; and the
    sums of `g` [32, K] over the tokens up to each one, over those after it, and over all.

    Sums within ever larger halves: no difference of sums is taken, in which the last tokens would lose digits.
    """
    row = tl.arange(0, 2 * _BLOCK)[:, None]
    j = tl.arange(0, _BLOCK)[None, :]
    products = tl.where(row == j + _BLOCK, tl.sum(_stack(q * 0.0, q * k), 1)[:, None], 0.0)
    i = tl.arange(0, _BLOCK)[:, None]
    pair = row % _BLOCK
    until = g
    after = tl.zeros([_BLOCK, K], tl.float32)
    for level in tl.static_range(0, 5):
        half = 1 << level
        late = i % (2 * half) >= half
        factor = tl.exp(tl.where(late, until, after))
        x = k * factor
        here = tl.dot(_stack(x, q * factor).to(KIND), tl.trans(x.to(KIND)), input_precision=PRECISION)
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
def _stack(x, y):
    """[32, C] twice -> [64, C]: one product with both keeps all warps at work."""
    return tl.reshape(tl.permute(tl.join(x, y), (2, 0, 1)), [2 * _BLOCK, x.shape[1]])


@triton.jit
def _unstack(x):
    return tl.split(tl.permute(tl.reshape(x, [2, _BLOCK, x.shape[1]]), (1, 2, 0)))


@triton.jit
def _norm(x, rows, real, stride, head, eps, K: tl.constexpr, NORM: tl.constexpr):
    """1 / the l2 norms of a head's rows, [32]."""
    n = tl.full([_BLOCK], 1.0, tl.float32)
    if NORM:
        at = x + rows[:, None] * stride + head * K + tl.arange(0, K)[None, :]
        wide = tl.load(at, real[:, None], other=0.0).to(tl.float32)
        n = tl.rsqrt(tl.sum(wide * wide, 1) + eps)
    return n


@triton.jit
def _channel_block(
    q, k, decay, products, nq, nk, bias, rate, lower_bound, real,
    KIND: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, FORM: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Of a slice of the channels of 32 tokens, at pointers q, k, decay [32, SLICE]: the products k k and q k within the
    block, added to `products` [64, 32]; k and q decayed from its start, k decayed to its end, float32 [32, SLICE]; the
    decay of the block [SLICE]."""
    real = real[:, None]
    xq = tl.load(q, real, other=0.0).to(tl.float32) * nq[:, None]
    xk = tl.load(k, real, other=0.0).to(tl.float32) * nk[:, None]
    f = tl.load(decay, real, other=0.0).to(tl.float32)
    g = tl.where(real, _log_decay(f, rate, bias[None, :], lower_bound, FORM), 0.0)
    if BOUNDED:
        since_start = tl.cumsum(g, 0)
        total = tl.sum(g, 0)
        grown = tl.exp(since_start - 0.5 * total[None, :])
        shrunk = xk / grown
        to_half = tl.exp(0.5 * total)
        dq = xq * grown
        dk = xk * grown
        right = tl.trans(shrunk.to(WIDE))
        products = tl.dot(_stack(dk, dq).to(WIDE), right, acc=products, input_precision=PRECISION)
        dq *= to_half[None, :]
        dk *= to_half[None, :]
        ke = shrunk * to_half[None, :]
        whole = to_half * to_half
    else:
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
    sequence = _sequence_of(cu_seqlens, sequences, chunk)
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
    beta0 = _write_strength(beta, beta_stride, rows0, real0, head, beta_scale, BETA)
    beta1 = _write_strength(beta, beta_stride, rows1, real1, head, beta_scale, BETA)
    tl.store(row_scales + place * _CHUNK + i, beta0)
    tl.store(row_scales + place * _CHUNK + _BLOCK + i, beta1)
    nq0 = _norm(q, rows0, real0, q_stride, key_head, eps, K, NORM) * scale
    nk0 = _norm(k, rows0, real0, k_stride, key_head, eps, K, NORM)
    nq1 = _norm(q, rows1, real1, q_stride, key_head, eps, K, NORM) * scale
    nk1 = _norm(k, rows1, real1, k_stride, key_head, eps, K, NORM)
    rate = 1.0
    if FORM != "given":
        rate = tl.exp(tl.load(A_log + head))

    early_pairs = tl.zeros([2 * _BLOCK, _BLOCK], tl.float32)
    late_pairs = early_pairs
    mixed_pairs = early_pairs
    for first in range(0, K, SLICE):
        d = first + tl.arange(0, SLICE)
        bias = tl.zeros([SLICE], tl.float32)
        if FORM != "given":
            bias = tl.load(dt_bias + head * K + d)
        q_at = q + rows0[:, None] * q_stride + (key_head * K + d)[None, :]
        k_at = k + rows0[:, None] * k_stride + (key_head * K + d)[None, :]
        decay_at = decay + rows0[:, None] * decay_stride + (head * K + d)[None, :]
        keys = scaled + place * (3 * _CHUNK * K) + i[:, None] * K + d[None, :]
        reads = keys + _CHUNK * K
        writes = keys + 2 * _CHUNK * K
        early_pairs, dk, dq, ke0, whole0 = _channel_block(
            q_at, k_at, decay_at, early_pairs, nq0, nk0, bias, rate, lower_bound, real0,
            KIND, WIDE, PRECISION, FORM, BOUNDED,
        )  # fmt: skip
        if DELTA:
            tl.store(keys, (dk * beta0[:, None]).to(KIND))
        tl.store(reads, dq.to(KIND))
        early = tl.trans(ke0.to(KIND))
        late_pairs, dk, dq, ke1, whole1 = _channel_block(
            q_at + _BLOCK * q_stride, k_at + _BLOCK * k_stride, decay_at + _BLOCK * decay_stride,
            late_pairs, nq1, nk1, bias, rate, lower_bound, real1, KIND, WIDE, PRECISION, FORM, BOUNDED,
        )  # fmt: skip
        tl.store(writes, (ke0 * whole1[None, :]).to(KIND))
        tl.store(writes + _BLOCK * K, ke1.to(KIND))
        tl.store(reads + _BLOCK * K, (dq * whole0[None, :]).to(KIND))
        tl.store(chunk_decay + place * K + d, whole0 * whole1)
        if DELTA:
            tl.store(keys + _BLOCK * K, (dk * (whole0[None, :] * beta1[:, None])).to(KIND))
        mixed_pairs = tl.dot(_stack(dk, dq).to(KIND), early, acc=mixed_pairs, input_precision=PRECISION)

    kk0, qk0 = _unstack(early_pairs)
    kk1, qk1 = _unstack(late_pairs)
    kk10, qk10 = _unstack(mixed_pairs)
    lower = i[:, None] >= i[None, :]
    strict = i[:, None] > i[None, :]
    mix = mixing + place * (2 * _CHUNK * _CHUNK)
    _store_quarters(mix + _CHUNK * _CHUNK, tl.where(lower, qk0, 0.0), qk10, tl.where(lower, qk1, 0.0))
    if DELTA:
        _store_inverse(
            mix, tl.where(strict, kk0 * beta0[:, None], 0.0), kk10 * beta1[:, None],
            tl.where(strict, kk1 * beta1[:, None], 0.0), PRECISION,
        )  # fmt: skip


@triton.jit
def _head_block(
    decay, beta, rows, real, decay_stride, beta_stride, head, rate, bias, lower_bound, constant, beta_scale,
    step_min, step_max, FORM: tl.constexpr, BETA: tl.constexpr,
):  # fmt: skip
    """Of 32 tokens: the log decays, and the strengths of write and value."""
    strength = _write_strength(beta, beta_stride, rows, real, head, beta_scale, BETA)
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
            g = _log_decay(f, rate, bias, lower_bound, FORM)
    return tl.where(real, g, 0.0), strength, value


@triton.jit
def _squares(x):
    wide = x.to(tl.float32)
    return tl.sum(wide * wide, 1)


@triton.jit
def _decay_between(g, strict):
    """exp(sum of g over j < t <= i) for j <= i, [32, 32]; each column sums from its own token on, so that the last
    tokens lose no digits in a difference of long sums."""
    return tl.exp(tl.cumsum(tl.where(strict, g[:, None], 0.0), 0))


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
    sequence = _sequence_of(cu_seqlens, sequences, chunk)
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
        late = _stack(k1, q1)
        early_pairs = tl.dot(_stack(k0, q0), tl.trans(k0), acc=early_pairs, input_precision=PRECISION)
        late_pairs = tl.dot(late, tl.trans(k1), acc=late_pairs, input_precision=PRECISION)
        mixed_pairs = tl.dot(late, tl.trans(k0), acc=mixed_pairs, input_precision=PRECISION)
    kk0, qk0 = _unstack(early_pairs)
    kk1, qk1 = _unstack(late_pairs)
    kk10, qk10 = _unstack(mixed_pairs)
    if NORM:
        nq0 = tl.rsqrt(nq0 + eps)
        nk0 = tl.rsqrt(nk0 + eps)
        nq1 = tl.rsqrt(nq1 + eps)
        nk1 = tl.rsqrt(nk1 + eps)
    else:
        nq0 += 1.0
        nk0 += 1.0
        nq1 += 1.0
        nk1 += 1.0
    nq0 *= scale
    nq1 *= scale
    since0 = tl.cumsum(g0, 0)
    since1 = tl.cumsum(g1, 0)
    to_end0 = tl.cumsum(g0, 0, reverse=True) - g0
    to_end1 = tl.cumsum(g1, 0, reverse=True) - g1
    total0 = tl.sum(g0, 0)
    total1 = tl.sum(g1, 0)

    # Row scales: of reads by keys (with the strength of the write), of values, of reads by queries, of writes.
    to = row_scales + place * (4 * _CHUNK) + i
    tl.store(to, s0 * nk0 * tl.exp(since0))
    tl.store(to + _BLOCK, s1 * nk1 * tl.exp(since1 + total0))
    tl.store(to + _CHUNK, v0)
    tl.store(to + _CHUNK + _BLOCK, v1)
    tl.store(to + 2 * _CHUNK, nq0 * tl.exp(since0))
    tl.store(to + 2 * _CHUNK + _BLOCK, nq1 * tl.exp(since1 + total0))
    tl.store(to + 3 * _CHUNK, nk0 * tl.exp(to_end0 + total1))
    tl.store(to + 3 * _CHUNK + _BLOCK, nk1 * tl.exp(to_end1))
    tl.store(chunk_decay + place, tl.exp(total0 + total1))

    lower = i[:, None] >= i[None, :]
    strict = i[:, None] > i[None, :]
    within0 = _decay_between(g0, strict) * nk0[None, :]
    within1 = _decay_between(g1, strict) * nk1[None, :]
    across = tl.exp(since1[:, None] + to_end0[None, :]) * nk0[None, :]
    mix = mixing + place * (2 * _CHUNK * _CHUNK)
    _store_quarters(
        mix + _CHUNK * _CHUNK,
        tl.where(lower, qk0 * within0 * nq0[:, None], 0.0),
        qk10 * across * nq1[:, None],
        tl.where(lower, qk1 * within1 * nq1[:, None], 0.0),
    )
    if DELTA:
        left0 = (s0 * nk0)[:, None]
        left1 = (s1 * nk1)[:, None]
        _store_inverse(
            mix,
            tl.where(strict, kk0 * within0 * left0, 0.0),
            kk10 * across * left1,
            tl.where(strict, kk1 * within1 * left1, 0.0),
            PRECISION,
        )
