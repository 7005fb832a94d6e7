"""Plain PyTorch hashed n-gram embedding.

Source: transformers Qwen4ExpTextPLELayer, the per-layer embedding of Qwen4-Exp.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from day0.kernels.common.numerics import upcast
from day0.kernels.interface.batch import Batch
from day0.kernels.ngram_embedding.hashing import multipliers, table_sizes
from day0.kernels.ngram_embedding.schema import NgramEmbeddingAttributes

# The gate's magnitude is at least this under its root, whose slope is infinite at zero.
GATE_FLOOR = 1e-6


def ngram_embedding(
    a: NgramEmbeddingAttributes,
    h: Tensor,  # [N, S, H]
    *,
    table: Tensor,  # [rows, embed_dim / heads]
    key: Tensor,  # [S * H, embed_dim]
    value: Tensor,  # [H, embed_dim]
    key_norm: Tensor,  # [S * H], as are the other norms; one-plus
    query_norm: Tensor,
    conv_norm: Tensor,
    conv: Tensor,  # [S * H, conv_kernel], the last column meets the newest token
    batch: Batch,
    context: Tensor,  # [slots, ngram_size - 1] int64, updated in place
    window: Tensor,  # [slots, S * H, window], updated in place
) -> Tensor:  # [N, S, H]
    """h' = h + y + silu(conv(norm(y))) with y_s = sigmoid(g_s) value(e), e the embedding of the last n-grams.

    g_s = sign(k) sqrt(max(|k|, 1e-6)) with k = <norm(key(e))_s, norm(h)_s> / sqrt(H); norms are RMS per stream.
    """
    e = embedding(ngram_rows(a, batch, context), table).flatten(-2)
    keys = _norm(a, linear(e, key).unflatten(-1, (a.streams, a.width)), key_norm)
    match = (upcast(keys) * upcast(_norm(a, h, query_norm))).sum(-1) / a.width**0.5
    gate = torch.sigmoid(match.sign() * match.abs().clamp(min=GATE_FLOOR).sqrt())
    y = (gate.unsqueeze(-1) * upcast(linear(e, value)).unsqueeze(-2)).to(h.dtype)
    return h + (y + _short_conv(a, _norm(a, y, conv_norm).flatten(-2), conv, batch, window).view_as(y))


def ngram_rows(a: NgramEmbeddingAttributes, batch: Batch, context: Tensor) -> Tensor:
    """The table row of every token and head: [N, heads] int64. Updates `context` to the last tokens in place.

    Head j of the n-grams hashes (XOR over i < n of token_{t-i} * multiplier_i) mod its table's size. The tokens at and
    before the last earlier eos count as eos.
    """
    factors = multipliers(a.vocab_size, a.ngram_size, a.layer_index, a.seed)
    sizes = torch.tensor(table_sizes(a.table_base, a.heads, a.layer_index), device=context.device)
    offsets = (sizes.cumsum(0) - sizes).split(a.heads_per_ngram)
    rows = torch.empty((batch.token_ids.shape[0], a.heads), dtype=torch.int64, device=context.device)
    reach = a.ngram_size - 1
    for sequence, (start, end, seen) in enumerate(batch.spans()):
        slot = batch.slots[sequence]
        before = context[slot] if seen > 0 else torch.full_like(context[0], a.eos_id)
        tokens = torch.cat((before, batch.token_ids[start:end]))
        length = end - start
        mixed = tokens[reach:] * factors[0]
        earlier = tokens[reach - 1 : reach - 1 + length]
        parts = []
        for back, (size, offset) in enumerate(zip(sizes.split(a.heads_per_ngram), offsets, strict=True), start=1):
            here = tokens[reach - back : reach - back + length]
            earlier = torch.where(earlier == a.eos_id, a.eos_id, here)
            mixed = mixed ^ (earlier * factors[back])
            parts.append(mixed.unsqueeze(-1) % size + offset)
        rows[start:end] = torch.cat(parts, dim=-1)
        context[slot] = tokens[length:]
    return rows


def _norm(a: NgramEmbeddingAttributes, x: Tensor, weight: Tensor) -> Tensor:
    """(1 + weight) RMS(x) per stream, in float32, back in the dtype of x. [N, S, H] -> [N, S, H]."""
    inner = upcast(x)
    inner = inner * torch.rsqrt(inner.square().mean(-1, keepdim=True) + a.norm_eps)
    return (inner * (1.0 + upcast(weight).view(a.streams, a.width))).to(x.dtype)


def _short_conv(a: NgramEmbeddingAttributes, x: Tensor, conv: Tensor, batch: Batch, window: Tensor) -> Tensor:
    """silu of the dilated depthwise convolution of x [N, S * H] over time. Updates `window` to the last inputs."""
    taps = upcast(conv)
    y = torch.empty_like(x)
    for sequence, (start, end, seen) in enumerate(batch.spans()):
        slot = batch.slots[sequence]
        before = window[slot].mT if seen > 0 else x.new_zeros(a.window, a.channels)
        inputs = torch.cat((before, x[start:end]))
        length = end - start
        total = torch.zeros_like(x[start:end], dtype=taps.dtype)
        for j in range(a.conv_kernel):
            total = total + taps[:, j] * inputs[j * a.conv_dilation : j * a.conv_dilation + length]
        y[start:end] = silu(total)
        window[slot] = inputs[length:].mT
    return y
