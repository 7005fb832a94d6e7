# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"
"""Kernels of the manifold-constrained hyper-connections; what they do and how they are launched: triton_mhc.py."""

import triton
import triton.language as tl

from day0.kernels.common.triton_math import rounded


@triton.jit
def mix_and_project(
    h,
    y,
    out_gates,
    mixing,
    h_new,
    fn,
    partial,
    tokens,
    width,
    h_row,
    h_stream,
    y_row,
    new_row,
    new_stream,
    fn_row,
    unit,
    STREAMS: tl.constexpr,
    MIX: tl.constexpr,
    PROJECT: tl.constexpr,
    ROWS: tl.constexpr,
    PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    DOT: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    """Tokens x (a split of the channels of every stream). partial [SPLITS, tokens, PAD]: ROWS products, then |h'|^2."""
    # The streams are read once, and what is written is read again: L2 keeps as much of that as it can.
    FIRST: tl.constexpr = "evict_first" if MIX else ""
    # Programs that share tokens start together.
    token = (tl.program_id(0) // SPLITS).to(tl.int64) * BM + tl.arange(0, BM)
    live = token < tokens
    split = tl.program_id(0) % SPLITS
    row = tl.arange(0, PAD)
    per_split = tl.cdiv(tl.cdiv(width, BC), SPLITS)
    products = tl.zeros([BM, PAD], tl.float32)
    # Summed over channels at the end: a sum across threads in each step would hold up its products.
    squares = tl.zeros([BM, BC], tl.float32)
    gates = ()
    mixes = ()
    if MIX:
        for i in tl.static_range(STREAMS):
            gates = gates + (tl.load(out_gates + token * STREAMS + i, mask=live, other=0.0)[:, None],)
        for e in tl.static_range(STREAMS * STREAMS):
            mixes = mixes + (tl.load(mixing + token * STREAMS * STREAMS + e, mask=live, other=0.0)[:, None],)
    for chunk in range(split * per_split, (split + 1) * per_split):
        channel = chunk * BC + tl.arange(0, BC)
        mask = live[:, None] & (channel < width)[None, :]
        streams = ()
        for j in tl.static_range(STREAMS):
            at = token[:, None] * h_row + j * h_stream + channel[None, :]
            streams = streams + (tl.load(h + at, mask=mask, other=0.0, eviction_policy=FIRST),)
        if MIX:
            # `unit` is 1 and no constant: without it the compiler mixes in the product's operand layout, which holds
            # every element in all warps (255 registers and spills instead of 130).
            added = tl.load(y + token[:, None] * y_row + channel[None, :], mask=mask, other=0.0, eviction_policy=FIRST)
            added = added.to(tl.float32) * unit
        for i in tl.static_range(STREAMS):
            if MIX:
                mixed = gates[i] * added
                for j in tl.static_range(STREAMS):
                    mixed += mixes[j * STREAMS + i] * streams[j].to(tl.float32)
                value = rounded(mixed, h_new.dtype.element_ty)
                tl.store(h_new + token[:, None] * new_row + i * new_stream + channel[None, :], value, mask=mask)
            else:
                value = streams[i]
            if PROJECT:
                at = row[None, :] * fn_row + i * width + channel[:, None]
                w = tl.load(fn + at, mask=(row < ROWS)[None, :] & (channel < width)[:, None], other=0.0)
                products = tl.dot(value.to(DOT), w.to(DOT), products, input_precision="ieee")
                squares += value.to(tl.float32) * value.to(tl.float32)
    if PROJECT:
        result = tl.where(row[None, :] == ROWS, tl.sum(squares, 1)[:, None], products)
        at = (split * tokens + token)[:, None] * PAD + row[None, :]
        tl.store(partial + at, result, mask=live[:, None])


@triton.jit
def _normaliser(m, axis: tl.constexpr, eps):
    """m over its sums along an axis; padding, all zeros, stays zero also where eps is 0."""
    total = tl.sum(m, axis, keep_dims=True) + eps
    return m / tl.where(total == 0.0, 1.0, total)


@triton.jit
def inverse_rms(
    partial, token, live, tokens, width, norm_eps,
    STREAMS: tl.constexpr, ROWS: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """1 / rms of the tokens' flattened streams, from the sums of their squares."""
    at = partial + (tl.arange(0, SPLITS)[:, None] * tokens + token[None, :]) * PAD + ROWS
    squares = tl.sum(tl.load(at, mask=live[None, :], other=0.0), 0)
    return tl.rsqrt(squares / (STREAMS * width) + norm_eps)


@triton.jit
def make_mix(
    partial, base, scale, out_gates, mixing, token, live, inverse, tokens, mix_eps, iterations,
    STREAMS: tl.constexpr, SIDE: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The tokens' post gates and mixing matrices, written."""
    sums = partial + (tl.arange(0, SPLITS)[:, None] * tokens + token[None, :]) * PAD
    post_scale = tl.load(scale + 1)
    for s in tl.static_range(STREAMS):
        found = tl.load(sums + STREAMS + s, mask=live[None, :], other=0.0)
        gate = 2.0 * tl.sigmoid(tl.sum(found, 0) * inverse * post_scale + tl.load(base + STREAMS + s))
        tl.store(out_gates + token * STREAMS + s, gate, mask=live)
    i = tl.arange(0, SIDE)[None, :, None]
    j = tl.arange(0, SIDE)[None, None, :]
    real = (i < STREAMS) & (j < STREAMS)
    kept = live[:, None, None] & real
    u = tl.zeros([token.shape[0], SIDE, SIDE], tl.float32)
    for k in range(SPLITS):
        entry = (k * tokens + token)[:, None, None] * PAD + 2 * STREAMS + i * STREAMS + j
        u += tl.load(partial + entry, mask=kept, other=0.0)
    offset = tl.load(base + 2 * STREAMS + i * STREAMS + j, mask=real, other=0.0)
    logits = tl.where(real, u * inverse[:, None, None] * tl.load(scale + 2) + offset, -float("inf"))
    top = tl.max(logits, 2, keep_dims=True)
    m = tl.where(real, tl.exp(logits - tl.where(top == -float("inf"), 0.0, top)), 0.0)
    m = tl.where(real, _normaliser(m, 2, 0.0) + mix_eps, 0.0)
    m = _normaliser(m, 1, mix_eps)
    for _ in range(iterations - 1):
        m = _normaliser(m, 2, mix_eps)
        m = _normaliser(m, 1, mix_eps)
    tl.store(mixing + token[:, None, None] * STREAMS * STREAMS + i * STREAMS + j, m, mask=kept)


@triton.jit
def pre_gate(
    partial, base, scale, token, live, inverse, tokens, mix_eps, stream: tl.constexpr,
    PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The share of one stream in the tokens' next input."""
    at = partial + (tl.arange(0, SPLITS)[:, None] * tokens + token[None, :]) * PAD + stream
    u = tl.sum(tl.load(at, mask=live[None, :], other=0.0), 0) * inverse
    return tl.sigmoid(u * tl.load(scale) + tl.load(base + stream)) + mix_eps


@triton.jit
def gates_and_collapse(
    h, partial, base, scale, x, out_gates, mixing, tokens, width, h_row, h_stream, x_row, norm_eps, mix_eps, iterations,
    STREAMS: tl.constexpr, SIDE: tl.constexpr, ROWS: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
    BT: tl.constexpr, BX: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """BLOCKS programs a group of tokens: 0 makes their post gates and mixing matrices, the others collapse BX channels.

    The last tokens first: L2 still holds what was written last.
    """
    group = tl.num_programs(0) // BLOCKS - 1 - tl.program_id(0) // BLOCKS
    token = group.to(tl.int64) * BT + tl.arange(0, BT)
    live = token < tokens
    inverse = inverse_rms(partial, token, live, tokens, width, norm_eps, STREAMS, ROWS, PAD, SPLITS)
    block = tl.program_id(0) % BLOCKS
    if block == 0:
        make_mix(
            partial, base, scale, out_gates, mixing, token, live, inverse, tokens, mix_eps, iterations,
            STREAMS, SIDE, PAD, SPLITS,
        )  # fmt: skip
    else:
        channel = (block - 1) * BX + tl.arange(0, BX)
        mask = live[:, None] & (channel < width)[None, :]
        total = tl.zeros([BT, BX], tl.float32)
        for s in tl.static_range(STREAMS):
            gate = pre_gate(partial, base, scale, token, live, inverse, tokens, mix_eps, s, PAD, SPLITS)
            at = token[:, None] * h_row + s * h_stream + channel[None, :]
            total += gate[:, None] * tl.load(h + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(x + token[:, None] * x_row + channel[None, :], total.to(x.dtype.element_ty), mask=mask)
