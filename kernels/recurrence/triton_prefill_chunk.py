# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What the kernels of a prefill's first pass share.

That pass makes what each chunk of 64 tokens needs that does not depend on the state, all chunks at once. Within a chunk
let G_i be the sum of the log decays up to token i, A_ij = beta_i sum_d k_id k_jd exp(G_id - G_jd) for j < i, and P_ij
the same with the query in place of beta_i k_i, for j <= i. The delta rule's writes solve (I + A) u = x with
x_i = beta_i (v_i - (k_i exp(G_i))^T S) (WY form of arXiv 2406.06484, decays of 2412.06464 and 2510.26692), so the
second pass needs R = (I + A)^-1 - I and P, and for decays per channel the decayed keys and queries themselves.

A decay per head splits off as exp(G_i - G_j) on the product of rows (triton_prefill_head). A decay per channel does
not: it is put on the two factors around a pivot (triton_prefill_bounded, triton_prefill_channel).
"""

import triton
import triton.language as tl

from day0.kernels.common.triton_launch import INTERPRETED
from day0.kernels.recurrence.triton_pieces import softplus

CHUNK = 64
BLOCK = 32
# exp of it is the least normal float32: a stronger decay leaves nothing either, and sums of it stay finite.
STRONGEST = tl.constexpr(-88.0)

_CHUNK = tl.constexpr(CHUNK)
_BLOCK = tl.constexpr(BLOCK)
_HALF = tl.constexpr(BLOCK // 2)
_SEARCHED = tl.constexpr(64)
_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def operand(x, KIND: tl.constexpr, PRECISION: tl.constexpr):
    """x for a product in KIND; float32 rounded to the digits that a product in tf32 takes, which would cut them off: of
    two operands that makes a thousandth, always downwards."""
    if KIND == tl.float32 and PRECISION == "tf32":
        rounded = ((x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
        return tl.where(x == x, rounded, x)  # a NaN of all ones would become 0
    else:
        return x.to(KIND)


@triton.jit
def chunk_base(cu_seqlens, sequence):
    """Number of a sequence's first chunk. Sequences may leave numbers unused, none shares one with another:
    ceil((b - a) / C) <= floor(b / C) - floor(a / C) + 1, so no prefix sum over the batch is needed."""
    return tl.load(cu_seqlens + sequence) // _CHUNK + sequence


@triton.jit
def sequence_of(cu_seqlens, sequences, chunk):
    """The last sequence whose first chunk is not behind `chunk`."""
    before = 0
    for start in range(0, sequences, _SEARCHED):
        s = start + tl.arange(0, _SEARCHED)
        real = s < sequences
        first = tl.load(cu_seqlens + s, real, other=0) // _CHUNK + s
        before += tl.sum((real & (first <= chunk)).to(tl.int32))
    return before - 1


@triton.jit
def log_decay(f, rate, bias, lower_bound, FORM: tl.constexpr):
    """Log decay of the decay port `f`, per channel or per head; a time step has its own path."""
    if FORM == "softplus":
        g = -rate * softplus(f + bias)
    elif FORM == "bounded_sigmoid":
        g = lower_bound * tl.sigmoid(rate * (f + bias))
    else:
        g = f
    return tl.where(g < STRONGEST, STRONGEST, g)  # keeps NaN


@triton.jit
def write_strength(beta, beta_stride, rows, real, head, beta_scale, BETA: tl.constexpr):
    if BETA == "none":
        b = tl.full([_BLOCK], 1.0, tl.float32)
    else:
        b = tl.load(beta + rows * beta_stride + head, real, other=0.0).to(tl.float32)
        if BETA == "sigmoid":
            b = beta_scale * tl.sigmoid(b)
    return tl.where(real, b, 0.0)


@triton.jit
def inverse_norms(qq0, kk0, qq1, kk1, scale, eps, NORM: tl.constexpr):
    """The scales of queries and keys [32] from their sums of squares: 1 / the l2 norms, queries times `scale`."""
    if NORM:
        return tl.rsqrt(qq0 + eps) * scale, tl.rsqrt(kk0 + eps), tl.rsqrt(qq1 + eps) * scale, tl.rsqrt(kk1 + eps)
    else:
        return qq0 + scale, kk0 + 1.0, qq1 + scale, kk1 + 1.0


@triton.jit
def store_row_scales(to, keys0, keys1, values0, values1, queries0, queries1, writes0, writes1):
    """Of a chunk's 64 rows: what scales reads by keys, values, reads by queries, and writes."""
    at = to + tl.arange(0, _BLOCK)
    tl.store(at, keys0)
    tl.store(at + _BLOCK, keys1)
    tl.store(at + _CHUNK, values0)
    tl.store(at + _CHUNK + _BLOCK, values1)
    tl.store(at + 2 * _CHUNK, queries0)
    tl.store(at + 2 * _CHUNK + _BLOCK, queries1)
    tl.store(at + 3 * _CHUNK, writes0)
    tl.store(at + 3 * _CHUNK + _BLOCK, writes1)


@triton.jit
def stack(x, y):
    """[32, C] twice -> [64, C]: one product with both keeps all warps at work."""
    return tl.reshape(tl.permute(tl.join(x, y), (2, 0, 1)), [2 * _BLOCK, x.shape[1]])


@triton.jit
def unstack(x):
    return tl.split(tl.permute(tl.reshape(x, [2, _BLOCK, x.shape[1]]), (1, 2, 0)))


@triton.jit
def parts(x, KIND: tl.constexpr):
    """x as the sum of two numbers of KIND, bfloat16 or float16, but for what both have no digits for."""
    # Cut off, not rounded: then the first part takes no conversion back.
    kept = 0xFFFF0000 if KIND == tl.bfloat16 else 0xFFFFE000
    high = (x.to(tl.uint32, bitcast=True) & kept).to(tl.float32, bitcast=True)
    low = x - high
    if _INTERPRETED and KIND == tl.bfloat16:  # numpy has no products of it
        return high, low
    else:
        return high.to(KIND), low.to(KIND)


@triton.jit
def _product(x, y, PRECISION: tl.constexpr):
    """x @ y with 16 digits of each: tf32 would cut a strength of almost 1 down by the same at every token."""
    if PRECISION == "ieee":
        return tl.dot(x, y, input_precision=PRECISION)
    else:
        x_high, x_low = parts(x, tl.bfloat16)
        y_high, y_low = parts(y, tl.bfloat16)
        return tl.dot(x_high, y_high, acc=tl.dot(x_high, y_low, acc=tl.dot(x_low, y_high)))


@triton.jit
def _inverse(a0, a1, PRECISION: tl.constexpr):
    """(I + a)^-1 of two strictly lower triangular [32, 32] matrices.

    With X the inverse of diagonal blocks of h rows and Y the part of a X that couples the two halves of each block of
    2h, X - X Y is the inverse of the blocks of 2h. No power of `a` appears, so that equal keys do no harm. Up to 16
    rows all four blocks are worked on side by side.
    """
    both = tl.reshape(tl.join(a0, a1), [2, _HALF, 2, _HALF, 2])
    left, right = tl.split(tl.permute(both, (4, 1, 3, 0, 2)))
    top, coupling = tl.split(left)
    _, bottom = tl.split(right)
    a = tl.reshape(tl.permute(tl.join(top, bottom), (0, 3, 1, 2)), [4, _HALF, _HALF])
    apart = tl.arange(0, _HALF)[None, :, None] ^ tl.arange(0, _HALF)[None, None, :]
    x = tl.where(apart == 1, -a, tl.where(apart == 0, 1.0, 0.0))
    for level in tl.static_range(1, 4):
        y = tl.where(apart >> level == 1, _product(a, x, PRECISION), 0.0)
        x -= _product(x, y, PRECISION)
    top, bottom = tl.split(tl.permute(tl.reshape(x, [2, 2, _HALF, _HALF]), (0, 2, 3, 1)))
    coupling = -_product(bottom, _product(coupling, top, PRECISION), PRECISION)
    rows = tl.join(tl.join(top, tl.zeros_like(top)), tl.join(coupling, bottom))
    return tl.split(tl.reshape(tl.permute(rows, (4, 1, 3, 2, 0)), [_BLOCK, _BLOCK, 2]))


@triton.jit
def store_quarters(to, top_left, bottom_left, bottom_right):
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
def store_inverse(to, a0, a10, a1, PRECISION: tl.constexpr):
    """R of the chunk from the quarters of A."""
    x0, x1 = _inverse(a0, a1, PRECISION)
    one = tl.where(tl.arange(0, _BLOCK)[:, None] == tl.arange(0, _BLOCK)[None, :], 1.0, 0.0)
    across = _product(x1, _product(a10, x0, PRECISION), PRECISION)
    store_quarters(to, x0 - one, -across, x1 - one)
