# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""y = scale * (x W^T + b) for a few tokens: every weight is read once, and nothing but weights takes time.

One token is a sum of products per output row, without tensor cores: as many weights as registers hold are on their way
at once. More tokens, up to 64, are a product with tiles of the weight as the left operand and the tokens as the right
one, so that a few tokens still make a full tile of the tensor cores. Where the output is too narrow to keep the device
busy, the columns are split, too, and the parts are added in a fixed order by a second launch.

The implementation takes fewer (FEW_ROWS in contract.py); `day0 kernels bench linear` shows why.
"""

import triton
import triton.language as tl
from torch import Tensor, bfloat16, float16, float32

from day0.kernels.common.triton_launch import next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Config, Space, size_bucket

KERNEL = "linear/triton"
DTYPES = (bfloat16, float16)
MAX_TOKENS = 64

# ROWS of the weight and DEPTH of its columns in a tile.
VECTOR = Space(
    "linear.vector",
    __file__,
    (
        {"ROWS": 4, "DEPTH": 1024, "num_warps": 4},
        {"ROWS": 4, "DEPTH": 2048, "num_warps": 4},
        {"ROWS": 4, "DEPTH": 4096, "num_warps": 8},
        {"ROWS": 2, "DEPTH": 4096, "num_warps": 4},
        {"ROWS": 1, "DEPTH": 4096, "num_warps": 2},
        {"ROWS": 8, "DEPTH": 1024, "num_warps": 8},
        {"ROWS": 16, "DEPTH": 512, "num_warps": 8},
    ),
)
MATRIX = Space(
    "linear.matrix",
    __file__,
    (
        {"ROWS": 64, "DEPTH": 128, "SPLITS": 1, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "DEPTH": 128, "SPLITS": 2, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "DEPTH": 128, "SPLITS": 4, "num_warps": 4, "num_stages": 4},
        {"ROWS": 64, "DEPTH": 256, "SPLITS": 1, "num_warps": 4, "num_stages": 3},
        {"ROWS": 64, "DEPTH": 64, "SPLITS": 1, "num_warps": 4, "num_stages": 6},
        {"ROWS": 128, "DEPTH": 64, "SPLITS": 1, "num_warps": 4, "num_stages": 4},
        {"ROWS": 128, "DEPTH": 128, "SPLITS": 1, "num_warps": 8, "num_stages": 3},
        {"ROWS": 16, "DEPTH": 256, "SPLITS": 1, "num_warps": 1, "num_stages": 4},
    ),
)


def bucket(tokens: int, in_features: int, out_features: int) -> tuple[int, ...]:
    """What a measured configuration depends on."""
    return size_bucket(tokens), in_features, out_features


def config_for(tokens: int, in_features: int, out_features: int) -> Config:
    """The configuration measured for this size, or the first of its space."""
    space = VECTOR if tokens == 1 else MATRIX
    return space.config(bucket(tokens, in_features, out_features))


def workspace(tokens: int, out_features: int, config: Config) -> int:
    """float32 numbers that `product` needs as scratch."""
    splits = config.get("SPLITS", 1)
    return splits * tokens * out_features if splits > 1 else 0


def product(
    x: Tensor,  # [M, in_features], M <= 64
    weight: Tensor,  # [out_features, in_features]
    out: Tensor,  # [M, out_features], written
    *,
    bias: Tensor | None = None,  # [out_features]
    scale: float = 1.0,
    scratch: Tensor | None = None,  # [workspace(...)] float32
    config: Config | None = None,
) -> None:
    """out = scale * (x weight^T + bias), added up in float32. Raises ContractError before anything runs."""
    require_tensor(KERNEL, "x", x, (None, None), DTYPES)
    tokens, columns = x.shape
    require(tokens <= MAX_TOKENS, KERNEL, f"at most {MAX_TOKENS} tokens, not {tokens}")
    require_tensor(KERNEL, "weight", weight, (None, columns), (x.dtype,))
    rows = weight.shape[0]
    require_tensor(KERNEL, "out", out, (tokens, rows), (x.dtype,))
    if bias is not None:
        require_tensor(KERNEL, "bias", bias, (rows,), (x.dtype,))
    if tokens == 0:
        return
    chosen = dict(config or config_for(tokens, columns, rows))
    depth = min(chosen.pop("DEPTH"), max(next_power_of_2(columns), 16))
    if tokens == 1:
        _vector[(triton.cdiv(rows, chosen["ROWS"]),)](
            x, weight, bias, out, rows, weight.stride(0), scale, COLUMNS=columns, DEPTH=depth, **chosen
        )
        return
    splits = chosen.pop("SPLITS")
    parts = out
    if splits > 1:
        needed = splits * tokens * rows
        require(scratch is not None and scratch.numel() >= needed, KERNEL, f"scratch of {needed} numbers")
        assert scratch is not None
        require_tensor(KERNEL, "scratch", scratch, (None,), (float32,))
        parts = scratch[:needed].view(splits * tokens, rows)
    # What one program adds up, in whole tiles.
    share = triton.cdiv(triton.cdiv(columns, depth), splits) * depth
    _matrix[(triton.cdiv(rows, chosen["ROWS"]), splits)](
        x, weight, bias, parts, tokens, rows, x.stride(0), weight.stride(0), parts.stride(0), scale,
        COLUMNS=columns, SHARE=share, TOKENS=max(next_power_of_2(tokens), 16), DEPTH=depth, WHOLE=splits == 1, **chosen,
    )  # fmt: skip
    if splits > 1:
        _sum[(tokens, triton.cdiv(rows, 512))](
            parts, bias, out, tokens, rows, out.stride(0), scale, SPLITS=splits, BLOCK=512, num_warps=2
        )


@triton.jit
def _vector(
    x, weight, bias, out, rows, weight_stride, scale, COLUMNS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, DEPTH)
    at = weight + row[:, None].to(tl.int64) * weight_stride + channel[None, :]
    total = tl.zeros((ROWS, DEPTH), dtype=tl.float32)
    for first in tl.static_range(0, COLUMNS, DEPTH):
        inside = first + channel < COLUMNS
        tile = tl.load(at + first, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        total += tile.to(tl.float32) * tl.load(x + first + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = tl.sum(total, axis=1)
    if bias is not None:
        y += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(out + row, (y * scale).to(out.dtype.element_ty), mask=row < rows)


@triton.jit
def _matrix(
    x, weight, bias, out, tokens, rows, x_stride, weight_stride, out_stride, scale,
    COLUMNS: tl.constexpr, SHARE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """WHOLE: `out` is the result; else it has a float32 part [tokens, rows] for each split of the columns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    token = tl.arange(0, TOKENS)
    channel = tl.arange(0, DEPTH)
    weights = weight + row[:, None].to(tl.int64) * weight_stride + channel[None, :]
    inputs = x + token[None, :].to(tl.int64) * x_stride + channel[:, None]
    total = tl.zeros((ROWS, TOKENS), dtype=tl.float32)
    for first in range(split * SHARE, min((split + 1) * SHARE, COLUMNS), DEPTH):
        inside = first + channel < COLUMNS
        tile = tl.load(weights + first, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        columns = tl.load(inputs + first, mask=(token < tokens)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(tile, columns, total)
    if WHOLE:
        if bias is not None:
            total += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
        total *= scale
    at = out + (split * tokens + token)[None, :].to(tl.int64) * out_stride + row[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (token < tokens)[None, :])


@triton.jit
def _sum(parts, bias, out, tokens, rows, out_stride, scale, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * tokens + token).to(tl.int64) * rows + row, mask=row < rows, other=0.0)
    if bias is not None:
        total += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(out + token.to(tl.int64) * out_stride + row, (total * scale).to(out.dtype.element_ty), mask=row < rows)
