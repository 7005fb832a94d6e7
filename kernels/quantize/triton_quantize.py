# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Quantises rows in one pass, to rows or straight to their tokens' places in a paged cache: see `reference`.

Which exponent or scale a group gets follows from the bits of its largest number, so that what is stored is what the
reference stores, bit by bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, bfloat16, float8_e4m3fn, float16, float32

from day0.kernels.common.triton_attention import pool_rows, query_block
from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.quantize.reference import GROUP, LARGEST, TILE

KERNEL = "quantize"
DTYPES = (bfloat16, float16, float32)
_BLOCK = 1024


def quantize(
    x: Tensor,  # [N, C]
    values: Tensor,  # [N, C] uint8 (the bits of e4m3), float8_e4m3fn or int8, written
    scales: Tensor,  # [N, C / 32] uint8 exponents or [N, C / 128] float32, written: its dtype says which
) -> None:
    """`values` and `scales` of `x`. Raises ContractError before anything runs."""
    _launch((x,), (values,), (scales,), None)


def quantize_into(
    ports: tuple[Tensor, ...],  # one or two of [N, C]
    values: tuple[Tensor, ...],  # as many pools [pool rows, C], written
    scales: tuple[Tensor, ...],  # as many pools [pool rows, C / 32 or C / 128], written
    *,
    batch: Batch,
) -> None:
    """The new tokens' entries, quantised, to their places; rows past cu_seqlens[-1] go nowhere.

    Raises ContractError before anything runs.
    """
    _launch(ports, values, scales, batch)


def _launch(
    ports: tuple[Tensor, ...], values: tuple[Tensor, ...], scales: tuple[Tensor, ...], batch: Batch | None
) -> None:
    count = len(ports)
    require(1 <= count <= 2 and len(values) == len(scales) == count, KERNEL, "values and scales of one or two ports")
    rows, channels = ports[0].shape if ports[0].dim() == 2 else (None, None)
    to = rows if batch is None else None
    width = GROUP if scales[0].dtype == torch.uint8 else TILE
    for port, pool, scale in zip(ports, values, scales, strict=True):
        require_tensor(KERNEL, "x", port, (rows, channels), DTYPES)
        require(port.shape[1] % width == 0, KERNEL, f"a multiple of {width} channels, not {port.shape[1]}")
        require_tensor(KERNEL, "values", pool, (to, channels), (torch.uint8, float8_e4m3fn, torch.int8))
        require_tensor(KERNEL, "scales", scale, (pool.shape[0], port.shape[1] // width), (torch.uint8, float32))
        same = (port.dtype, pool.dtype, scale.dtype) == (ports[0].dtype, values[0].dtype, scales[0].dtype)
        require(same, KERNEL, "both ports in one form")
        require(batch is None or pool.shape[0] < 2**31, KERNEL, "a pool of fewer than 2^31 rows")
    if not rows or not channels:
        return
    form = "int8" if values[0].dtype == torch.int8 else "e4m3"
    if form == "e4m3":
        values = tuple(pool.view(torch.uint8) for pool in values)
    block = min(_BLOCK, next_power_of_2(channels))
    sequences = 0 if batch is None else batch.sequences
    _quantize[(rows, triton.cdiv(channels, block), count)](
        ports[0], ports[-1], values[0], values[-1], scales[0], scales[-1],
        None if batch is None else batch.cu_seqlens,
        None if batch is None else batch.context_lens,
        None if batch is None else batch.page_table,
        rows, sequences,
        ports[0].stride(0), ports[-1].stride(0), values[0].stride(0), values[-1].stride(0),
        scales[0].stride(0), scales[-1].stride(0), 0 if batch is None else batch.page_table.stride(0),
        CHANNELS=channels, WIDTH=width, POWERS=width == GROUP, FORM=form, LARGEST=LARGEST[form],
        BLOCK=block, BS=next_power_of_2(sequences), PAGE=PAGE_TOKENS, num_warps=max(1, block // 256),
    )  # fmt: skip


@triton.jit
def _packed(x, FORM: tl.constexpr):
    """To the nearest, ties to even: adding 1.5 * 2^23 units leaves float32 no room for a fraction of one."""
    if FORM == "e4m3":
        # A unit is the last of three mantissa bits, and 2^-9 below the normal numbers. The cast, which truncates where
        # it is interpreted, then has nothing to round.
        exponent = tl.maximum((x.to(tl.int32, bitcast=True) >> 23) & 0xFF, 121)
        units = (((exponent + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)
        return ((x + units) - units).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        return ((x + 12582912.0) - 12582912.0).to(tl.int8)


@triton.jit
def _entry(
    x, values, scales, row, to, x_stride, values_stride, scales_stride,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, POWERS: tl.constexpr, FORM: tl.constexpr, LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    group = tl.program_id(1) * (BLOCK // WIDTH) + tl.arange(0, BLOCK // WIDTH)
    numbers = tl.load(x + row.to(tl.int64) * x_stride + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    numbers = tl.reshape(numbers, (BLOCK // WIDTH, WIDTH))
    # Without their signs, floats are in the order of their bits, and infinity and NaN above all numbers.
    top = tl.max(numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    finite = top < 0x7F800000
    if POWERS:
        # 448 = 1.75 * 2^8 and 127 = 1.984375 * 2^6: one exponent more where the mantissa is above that of the largest.
        if FORM == "e4m3":
            exponent = ((tl.where(finite, top, 0) + 0x1FFFFF) >> 23) - 8
        else:
            exponent = ((tl.where(finite, top, 0) + 0x01FFFF) >> 23) - 6
        exponent = tl.maximum(exponent, 1)
        scaled = numbers * ((254 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
        scale = tl.where(finite, exponent, 255).to(tl.uint8)
    else:
        divisor = tl.maximum(tl.div_rn(top.to(tl.float32, bitcast=True), LARGEST), 1.1754943508222875e-38)
        scaled = tl.div_rn(numbers, tl.broadcast_to(divisor[:, None], (BLOCK // WIDTH, WIDTH)))
        scale = tl.where(finite, divisor, float("nan"))
    packed = _packed(tl.where(finite[:, None], scaled, 0.0), FORM)
    tl.store(values + to * values_stride + channel, tl.reshape(packed, (BLOCK,)), mask=channel < CHANNELS)
    tl.store(scales + to * scales_stride + group, scale, mask=group < CHANNELS // WIDTH)


@triton.jit
def _quantize(
    first, second, first_values, second_values, first_scales, second_scales, cu_seqlens, context_lens, page_table,
    rows, sequences, first_stride, second_stride, first_values_stride, second_values_stride,
    first_scales_stride, second_scales_stride, table_row,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, POWERS: tl.constexpr, FORM: tl.constexpr, LARGEST: tl.constexpr,
    BLOCK: tl.constexpr, BS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Grid: [rows, blocks of channels, ports]. Without a page table entries go to rows of their own number."""
    row = tl.program_id(0)
    if page_table is None:
        to = row.to(tl.int64)
    else:
        sequence, start, row, _ = query_block(cu_seqlens, sequences, rows, row, 1, BS)
        if sequence >= sequences:
            return
        position = tl.load(context_lens + sequence).to(tl.int32) + row - start
        to = pool_rows(page_table, table_row, sequence, position, position >= 0, PAGE).to(tl.int64)
    if tl.program_id(2) == 0:
        _entry(
            first, first_values, first_scales, row, to, first_stride, first_values_stride, first_scales_stride,
            CHANNELS, WIDTH, POWERS, FORM, LARGEST, BLOCK,
        )  # fmt: skip
    else:
        _entry(
            second, second_values, second_scales, row, to, second_stride, second_values_stride, second_scales_stride,
            CHANNELS, WIDTH, POWERS, FORM, LARGEST, BLOCK,
        )  # fmt: skip
