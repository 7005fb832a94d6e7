# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Second pass over a prefill: the chunks of a sequence one after the other, the state in registers from end to end.

With the decayed keys d_i = beta_i k_i exp(G_i), decayed queries c_i = q_i exp(G_i), keys carried to the chunk's end
e_i = k_i exp(G_last - G_i), and R, P of the first pass, a chunk takes the state S [K, V] through (all of these without
their norms, strengths and decays per head, which are scales of rows of the products)

    x = beta v - d S        u = x + R x        o = c S + P u        S <- exp(G_last) S + e^T u

(without the delta rule u = beta v). A program holds a slice of columns of S, and holds it transposed: then every
product has as its left operand what the step before left in registers, and as its right one a tile fetched ahead.
The identity in (I + A)^-1 = I + R stays out of the products, so that u carries no rounding of the operands but R's.
Where keys repeat, writes cancel those before them: u and x go into their products in two parts, since what rounding
leaves of each would stay in the state, and add up.
"""

import triton
import triton.language as tl

from day0.kernels.recurrence.triton_prefill_chunk import CHUNK, chunk_base, parts

_CHUNK = tl.constexpr(CHUNK)


@triton.jit
def _add_product(acc, x, y, KIND: tl.constexpr, PRECISION: tl.constexpr):
    """acc + x y with the digits of x that KIND has no room for as a second product."""
    if KIND == tl.float32:
        acc = tl.dot(x, y, acc=acc, input_precision=PRECISION)
    else:
        high, low = parts(x, KIND)
        acc = tl.dot(low, y, acc=tl.dot(high, y, acc=acc))
    return acc


@triton.jit
def _row_scales(packed):
    """Of values, reads by keys, reads by queries and writes, [64] each. Loaded as one: threads then hold two numbers of
    it until they are needed, not all those that go with their part of a tile."""
    first, second = tl.split(tl.permute(tl.reshape(packed, [2, 2, _CHUNK]), (2, 1, 0)))
    of_keys, of_values = tl.split(first)
    of_queries, of_writes = tl.split(second)
    return of_values, of_keys, of_queries, of_writes


@triton.jit
def _decay(chunk_decay, place, d, K: tl.constexpr, PER_CHANNEL: tl.constexpr):
    """Of a whole chunk: [K] or a number."""
    if PER_CHANNEL:
        return tl.load(chunk_decay + place * K + d)
    else:
        return tl.load(chunk_decay + place)


@triton.jit
def walk(
    q, k, v, o, scaled, mixing, row_scales, chunk_decay, state, D, cu_seqlens, context_lens, slots,
    kept, kept_rows, q_stride, k_stride, v_stride, slot_stride, kept_stride, kept_rows_stride,
    first_chunk, chunks_held, heads, group, every,
    K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
    PER_CHANNEL: tl.constexpr, DELTA: tl.constexpr, SKIP: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """One program per slice of columns, value head and sequence, over the chunks first_chunk .. + chunks_held - 1."""
    BLOCKS_V: tl.constexpr = V // BLOCK_V
    head = tl.program_id(0) // BLOCKS_V
    column = tl.program_id(0) % BLOCKS_V * BLOCK_V + tl.arange(0, BLOCK_V)
    sequence = tl.program_id(1)
    start = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - start
    base = chunk_base(cu_seqlens, sequence) - first_chunk
    begin = tl.maximum(-base, 0).to(tl.int32)
    end = tl.minimum(tl.cdiv(length, _CHUNK), chunks_held - base).to(tl.int32)
    # A sequence without tokens belongs to the launch that holds its first chunk: a fresh one's state becomes zero.
    empty = (length == 0) & (base >= 0) & (base < chunks_held)
    if (begin >= end) & (empty == 0):
        return
    i = tl.arange(0, _CHUNK)
    d = tl.arange(0, K)
    cell = d[None, :] * V + column[:, None]
    memory = state + tl.load(slots + sequence) * slot_stride + head * (K * V) + cell
    known = tl.where(tl.load(context_lens + sequence) + begin > 0, K * V, 0)
    s = tl.load(memory, cell < known, other=0.0).to(tl.float32)
    skip = 0.0
    if SKIP:
        skip = tl.load(D + head)

    # Tiles of products are fetched ahead by themselves. What else the next chunk takes is loaded before its turn.
    four = tl.arange(0, 4 * _CHUNK)
    place = (base + begin).to(tl.int64) * heads + head
    next_scales = tl.load(row_scales + place * (4 * _CHUNK) + four)
    next_decay = _decay(chunk_decay, place, d, K, PER_CHANNEL)
    row = begin * _CHUNK + i
    value_at = v + (start + row)[:, None] * v_stride + head * V + column[None, :]
    next_value = tl.load(value_at, (row < length)[:, None], other=0.0)
    for t in range(begin, end):
        place = (base + t).to(tl.int64) * heads + head
        of_values, of_keys, of_queries, of_writes = _row_scales(next_scales)
        decay = next_decay
        value = tl.trans(next_value).to(tl.float32)
        next_place = place + tl.where(t + 1 < end, heads, 0)
        next_scales = tl.load(row_scales + next_place * (4 * _CHUNK) + four)
        next_decay = _decay(chunk_decay, next_place, d, K, PER_CHANNEL)
        row = t * _CHUNK + i
        real = row < length
        at = start + row
        value_at = v + (at + _CHUNK)[:, None] * v_stride + head * V + column[None, :]
        next_value = tl.load(value_at, (row + _CHUNK < length)[:, None], other=0.0)
        x = value * of_values[None, :]
        mix = mixing + place * (2 * _CHUNK * _CHUNK) + i[:, None] * _CHUNK + i[None, :]
        if PER_CHANNEL:
            tile = scaled + place * (3 * _CHUNK * K) + i[:, None] * K + d[None, :]
            reader = tl.load(tile + _CHUNK * K)
            writer = tl.load(tile + 2 * _CHUNK * K)
        else:
            key_head = head // group
            writer = tl.load(k + at[:, None] * k_stride + key_head * K + d[None, :], real[:, None], other=0.0)
            reader = tl.load(q + at[:, None] * q_stride + key_head * K + d[None, :], real[:, None], other=0.0)
        narrow = s.to(KIND)
        if DELTA:
            read_keys = tl.load(tile) if PER_CHANNEL else writer
            x -= tl.dot(narrow, tl.trans(read_keys), input_precision=PRECISION) * of_keys[None, :]
            x = _add_product(x, x, tl.trans(tl.load(mix)), KIND, PRECISION)
        out = tl.dot(narrow, tl.trans(reader), input_precision=PRECISION) * of_queries[None, :]
        within = tl.trans(tl.load(mix + _CHUNK * _CHUNK))
        out = _add_product(out, x, within, KIND, PRECISION)
        s *= decay[None, :] if PER_CHANNEL else decay
        if not PER_CHANNEL:
            x *= of_writes[None, :]
        s = _add_product(s, x, writer, KIND, PRECISION)
        if SKIP:
            out += skip * value
        to = o + at[:, None] * (heads * V) + head * V + column[None, :]
        tl.store(to, tl.trans(out).to(o.dtype.element_ty), real[:, None])
        if KEEP:
            if ((t + 1) % every == 0) & ((t + 1) * _CHUNK <= length):
                kept_row = tl.load(kept_rows + sequence * kept_rows_stride + (t + 1) // every - 1)
                if kept_row >= 0:
                    to_state = kept + kept_row * kept_stride + head * (K * V) + cell
                    tl.store(to_state, s.to(kept.dtype.element_ty))
    tl.store(memory, s.to(state.dtype.element_ty))
