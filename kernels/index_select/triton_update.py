# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Writes new index keys into the paged pool: one per token, or one per pool of tokens that they complete."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.index_select.triton_blocks import entry_of, first_row, sequence_of
from day0.kernels.index_select.triton_choose import DTYPES, KERNEL, require_batch
from day0.kernels.interface.batch import PAGE_TOKENS, Batch

_ROWS = 16


@triton.jit
def token_kernel(
    k,  # [N, D]
    keys,  # [pool rows, D]
    page_table,
    cu_seqlens,
    context_lens,
    sequences,
    k_stride,
    key_stride,
    page_stride,
    D: tl.constexpr,
    C: tl.constexpr,  # D up to a power of 2
    R: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Programs: blocks of R new tokens. Row t of a sequence goes to page_table[t // PAGE] * PAGE + t % PAGE."""
    block = tl.program_id(0)
    sequence = sequence_of(block, cu_seqlens, sequences, R)
    start = tl.load(cu_seqlens + sequence)
    row = first_row(block, start, sequence, R) + tl.arange(0, R)
    owned = row < tl.load(cu_seqlens + sequence + 1)
    token = tl.load(context_lens + sequence) + row - start
    entry = entry_of(page_table + sequence * page_stride, token, owned, PAGE)
    channel = tl.arange(0, C)[None, :]
    mask = owned[:, None] & (channel < D)
    value = tl.load(k + row[:, None] * k_stride + channel, mask=mask, other=0.0)
    tl.store(keys + entry[:, None] * key_stride + channel, value, mask=mask)


@triton.jit
def _pooled(
    first,  # token number of the pool's first
    channel,  # [C]
    k,
    gate,
    bias,
    tail_keys,
    tail_gates,
    context,
    start,
    k_stride,
    gate_stride,
    tail_stride,
    channels,  # D, or 0 where there is no such pool
    D: tl.constexpr,
    POOL: tl.constexpr,
    SOFTMAX: tl.constexpr,
):
    """The pool's mean or softmax-weighted keys in these channels, [C] float32, rounded as the reference rounds."""
    j = tl.arange(0, POOL)[:, None]
    token = first + j
    mask = (channel < channels)[None, :]
    kept, new = mask & (token < context), mask & (token >= context)
    dtype = k.dtype.element_ty
    value = tl.load(tail_keys + j * tail_stride + channel[None, :], mask=kept, other=0.0)
    fresh = tl.load(k + (start + token - context) * k_stride + channel[None, :], mask=new, other=0.0)
    value = tl.where(token < context, value, fresh).to(tl.float32)
    if SOFTMAX:
        logit = tl.load(tail_gates + j * tail_stride + channel[None, :], mask=kept, other=0.0)
        fresh = tl.load(gate + (start + token - context) * gate_stride + channel[None, :], mask=new, other=0.0)
        logit = tl.where(token < context, logit, fresh).to(tl.float32)
        logit += tl.load(bias + j * D + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        weight = tl.exp(logit - tl.max(logit, axis=0)[None, :])
        share = (weight / tl.sum(weight, axis=0)[None, :]).to(dtype).to(tl.float32)
        pooled = tl.sum((share * value).to(dtype).to(tl.float32), axis=0)
    else:
        pooled = tl.sum(value, axis=0) / POOL
    return pooled.to(dtype).to(tl.float32)


@triton.jit
def pool_kernel(
    k,  # [N, D]
    gate,  # [N, D] where SOFTMAX
    bias,  # [POOL, D] where SOFTMAX
    norm,  # [D] where NORM
    frequencies,  # [ROTARY // 2] float32
    pooled_keys,  # [pool rows, D]
    tail_keys,  # [slots, POOL, D]
    tail_gates,  # the same where SOFTMAX
    page_table,
    cu_seqlens,
    context_lens,
    slots,
    sequences,
    eps,
    k_stride,
    gate_stride,
    key_stride,
    tail_slot_stride,
    tail_stride,
    page_stride,
    D: tl.constexpr,
    C: tl.constexpr,
    POOL: tl.constexpr,
    PAGE: tl.constexpr,
    SOFTMAX: tl.constexpr,
    NORM: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """Programs: one pool that new tokens complete; a sequence's first one also stores its new incomplete pool.

    A sequence of n new tokens completes at most n // POOL + 1 pools, which the blocks of `sequence_of` have room for.
    Only its first reads the stored incomplete pool, so that it may be overwritten after it.
    """
    block = tl.program_id(0)
    sequence = sequence_of(block, cu_seqlens, sequences, POOL)
    start = tl.load(cu_seqlens + sequence)
    if POOL > 1:
        number = block - (start // POOL + sequence)
    else:
        number = block - start
    context = tl.load(context_lens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    total = context + end - start
    pool = context // POOL + number
    channels = tl.where(pool < total // POOL, D, 0)
    slot = tl.load(slots + sequence)
    tail_keys += slot * tail_slot_stride
    tail_gates += slot * tail_slot_stride
    channel = tl.arange(0, C)
    dtype = k.dtype.element_ty
    first = pool * POOL
    key = _pooled(
        first, channel, k, gate, bias, tail_keys, tail_gates, context, start, k_stride, gate_stride, tail_stride,
        channels, D, POOL, SOFTMAX,
    )  # fmt: skip
    if NORM:
        root = tl.rsqrt(tl.sum(key * key, axis=0) / D + eps)
        scale = 1.0 + tl.load(norm + channel, mask=channel < D, other=0.0).to(tl.float32)
        key = (key * root * scale).to(dtype).to(tl.float32)
    if ROTARY > 0:
        turning = channel < ROTARY
        partner = tl.where(channel < ROTARY // 2, channel + ROTARY // 2, channel - ROTARY // 2)
        partner = tl.where(turning, partner, channel)
        other = _pooled(
            first, partner, k, gate, bias, tail_keys, tail_gates, context, start, k_stride, gate_stride, tail_stride,
            channels, D, POOL, SOFTMAX,
        )  # fmt: skip
        if NORM:
            scale = 1.0 + tl.load(norm + partner, mask=partner < D, other=0.0).to(tl.float32)
            other = (other * root * scale).to(dtype).to(tl.float32)
        frequency = tl.load(frequencies + channel % (ROTARY // 2), mask=turning, other=0.0)
        angle = first.to(tl.float32) * frequency
        cos = tl.cos(angle).to(dtype).to(tl.float32)
        sin = tl.sin(angle).to(dtype).to(tl.float32)
        straight = (key * cos).to(dtype).to(tl.float32)
        across = (other * sin).to(dtype).to(tl.float32)
        turned = tl.where(channel < ROTARY // 2, straight - across, straight + across)
        key = tl.where(turning, turned, key)
    entry = entry_of(page_table + sequence * page_stride, pool, channels > 0, PAGE // POOL)
    tl.store(pooled_keys + entry * key_stride + channel, key.to(dtype), mask=channel < channels)

    tl.debug_barrier()
    j = tl.arange(0, POOL)[:, None]
    token = total // POOL * POOL + j
    # What stands there of before stays; behind the new tokens come zeros.
    written = (token >= context) & (channel < tl.where(number == 0, D, 0))[None, :]
    new = written & (token < total)
    value = tl.load(k + (start + token - context) * k_stride + channel[None, :], mask=new, other=0.0)
    tl.store(tail_keys + j * tail_stride + channel[None, :], value, mask=written)
    if SOFTMAX:
        value = tl.load(gate + (start + token - context) * gate_stride + channel[None, :], mask=new, other=0.0)
        tl.store(tail_gates + j * tail_stride + channel[None, :], value, mask=written)


def write_tokens(a: IndexSelectAttributes, k: Tensor, keys: Tensor, *, batch: Batch) -> None:
    """New keys k [N, dim] into keys [pool rows, dim], in place. Raises ContractError before it launches."""
    rows = k.shape[0]
    require_tensor(KERNEL, "k", k, (rows, a.dim), DTYPES)
    require_tensor(KERNEL, "keys", keys, (None, a.dim), (k.dtype,))
    require_batch(KERNEL, batch)
    if rows == 0:
        return
    token_kernel[(rows // _ROWS + batch.sequences,)](
        k,
        keys,
        batch.page_table,
        batch.cu_seqlens,
        batch.context_lens,
        batch.sequences,
        k.stride(0),
        keys.stride(0),
        batch.page_table.stride(0),
        D=a.dim,
        C=next_power_of_2(a.dim),
        R=_ROWS,
        PAGE=PAGE_TOKENS,
        num_warps=4,
    )


def write_pools(
    a: IndexSelectAttributes,
    k: Tensor,  # [N, dim]
    gate: Tensor | None,  # [N, dim], pooling "softmax"
    bias: Tensor | None,  # [pool, dim], pooling "softmax"
    norm: Tensor | None,  # [dim], where pooled keys are normalised
    frequencies: Tensor | None,  # [pooled_rotary_dim // 2] float32, where they are rotated
    pooled_keys: Tensor,  # [pool rows, dim]
    tail_keys: Tensor,  # [slots, pool, dim]
    tail_gates: Tensor | None,  # [slots, pool, dim], pooling "softmax"
    *,
    batch: Batch,
) -> None:
    """Completed pools' keys and the new incomplete pools, in place, as the reference's `update_candidates`.

    Raises ContractError before it launches.
    """
    rows = k.shape[0]
    softmax = a.pooling == "softmax"
    require_tensor(KERNEL, "k", k, (rows, a.dim), DTYPES)
    require_tensor(KERNEL, "pooled_keys", pooled_keys, (None, a.dim), (k.dtype,))
    require_tensor(KERNEL, "tail_keys", tail_keys, (None, a.pool, a.dim), (k.dtype,))
    require(softmax == (gate is not None and bias is not None and tail_gates is not None), KERNEL, "gates for softmax")
    if gate is not None and bias is not None and tail_gates is not None:
        require_tensor(KERNEL, "pool_gate", gate, (rows, a.dim), (k.dtype,))
        require_tensor(KERNEL, "pool_bias", bias, (a.pool, a.dim), DTYPES)
        require(bias.is_contiguous(), KERNEL, "a contiguous pool_bias")
        require_tensor(KERNEL, "tail_gates", tail_gates, tuple(tail_keys.shape), (k.dtype,))
        require(tail_gates.stride() == tail_keys.stride(), KERNEL, "tail_gates laid out as tail_keys")
    require((a.pooled_norm_eps > 0) == (norm is not None), KERNEL, "pooled_norm where pooled_norm_eps is set")
    if norm is not None:
        require_tensor(KERNEL, "pooled_norm", norm, (a.dim,), DTYPES)
    require((a.pooled_rotary_dim > 0) == (frequencies is not None), KERNEL, "frequencies for pooled_rotary_dim")
    if frequencies is not None:
        require_tensor(KERNEL, "frequencies", frequencies, (a.pooled_rotary_dim // 2,), (torch.float32,))
    require_batch(KERNEL, batch)
    blocks = rows if a.pool == 1 else rows // a.pool + batch.sequences
    if blocks == 0:
        return
    pool_kernel[(blocks,)](
        k,
        k if gate is None else gate,
        k if bias is None else bias,
        k if norm is None else norm,
        k if frequencies is None else frequencies,
        pooled_keys,
        tail_keys,
        tail_keys if tail_gates is None else tail_gates,
        batch.page_table,
        batch.cu_seqlens,
        batch.context_lens,
        batch.slots,
        batch.sequences,
        a.pooled_norm_eps,
        k.stride(0),
        0 if gate is None else gate.stride(0),
        pooled_keys.stride(0),
        tail_keys.stride(0),
        tail_keys.stride(1),
        batch.page_table.stride(0),
        D=a.dim,
        C=next_power_of_2(a.dim),
        POOL=a.pool,
        PAGE=PAGE_TOKENS,
        SOFTMAX=softmax,
        NORM=norm is not None,
        ROTARY=a.pooled_rotary_dim,
        num_warps=1 if a.pool <= 4 else 4,
    )
