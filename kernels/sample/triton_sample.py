# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Draws the next token of every sequence without sorting the vocabulary.

A threshold splits the vocabulary: tokens above it are allowed, of those on it the first few by index. Thresholds are
found in the order-preserving integer form of the logits, four bits at a time: a pass counts (top-k) or adds up the
probability of (top-p) the tokens at or above each of 16 candidates, and eight passes settle all 32 bits. The draw is
one more pass, the largest of logit + Gumbel noise (Gumbel 1954; the Gumbel-max trick), with noise from a counter-based
generator over (seed, position, token): it depends on nothing but the sequence's own numbers, not on its batch mates.
"""

import triton
import triton.language as tl
from torch import Tensor, float32, int32, int64

from day0.kernels.common.triton_launch import require, require_tensor

_BLOCK = 2048


def sample(
    logits: Tensor,  # [B, V] float32, float16 or bfloat16
    out: Tensor,  # [B] int64: the tokens
    *,
    temperature: Tensor,  # [B] float32; 0: the best token
    top_k: Tensor,  # [B] int32; 0: all
    top_p: Tensor,  # [B] float32
    min_p: Tensor,  # [B] float32
    seed: Tensor,  # [B] int64
    position: Tensor,  # [B] int64: how many tokens the sequence has, so that each draw is new
) -> None:
    """Fill `out`. What is allowed: `reference.allowed`. A row without any finite logit gives -1.

    Raises ContractError on other shapes and dtypes.
    """
    kernel = "sample"
    rows = logits.shape[0]
    require_tensor(kernel, "logits", logits, (None, None))
    require(logits.dtype.is_floating_point and logits.dtype.itemsize <= 4, kernel, "logits in float32 or smaller")
    require(logits.shape[1] > 0, kernel, "a vocabulary")
    for name, x, dtype in (
        ("temperature", temperature, float32),
        ("top_k", top_k, int32),
        ("top_p", top_p, float32),
        ("min_p", min_p, float32),
        ("seed", seed, int64),
        ("position", position, int64),
        ("out", out, int64),
    ):
        require_tensor(kernel, name, x, (rows,), (dtype,))
    if rows == 0:
        return
    block = min(_BLOCK, triton.next_power_of_2(logits.shape[1]))
    _sample[(rows,)](
        logits, out, temperature, top_k, top_p, min_p, seed, position, logits.shape[1], logits.stride(0),
        BLOCK=block, num_warps=8,
    )  # fmt: skip


@triton.jit
def _load(logits, row, v, vocabulary, stride):
    """Logits as float32, inf as the largest number; -inf for NaN and outside the vocabulary."""
    x = tl.load(logits + row * stride + v, mask=v < vocabulary, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, tl.minimum(x, 3.4028234663852886e38), float("-inf"))


@triton.jit
def _key(x):
    """float32 as int64 0 .. 2^32 - 1 of the same order; -0.0 and 0.0 are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, -1 - bits, bits + 2147483648) & 0xFFFFFFFF


@triton.jit
def _value(key):
    """The float32 that `_key` made this from."""
    bits = tl.where(key < 2147483648, -1 - key, key - 2147483648)
    return bits.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _threshold(logits, row, vocabulary, stride, best, rate, wanted, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that the tokens at or above it count, or weigh, at least `wanted`."""
    found = tl.zeros((), dtype=tl.int64)
    digit = tl.arange(0, 16)
    for step in tl.static_range(8):
        pivot = found + (digit.to(tl.int64) << (28 - 4 * step))
        reached = tl.zeros((16,), dtype=tl.float32)
        for first in range(0, vocabulary, BLOCK):
            v = first + tl.arange(0, BLOCK)
            x = _load(logits, row, v, vocabulary, stride)
            if COUNT:
                weight = (v < vocabulary).to(tl.float32)
            else:
                weight = tl.exp((x - best) * rate)
            reached += tl.sum(tl.where(_key(x)[None, :] >= pivot[:, None], weight[None, :], 0.0), axis=1)
        # The first candidate is the prefix itself, which is known to reach.
        last = tl.max(tl.where((reached >= wanted) | (digit == 0), digit, 0), axis=0)
        found += last.to(tl.int64) << (28 - 4 * step)
    return found


@triton.jit
def _above(logits, row, vocabulary, stride, best, rate, key, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Count, or weight, of the tokens above a key."""
    total = tl.zeros((), dtype=tl.float32)
    for first in range(0, vocabulary, BLOCK):
        v = first + tl.arange(0, BLOCK)
        x = _load(logits, row, v, vocabulary, stride)
        if COUNT:
            weight = (v < vocabulary).to(tl.float32)
        else:
            weight = tl.exp((x - best) * rate)
        total += tl.sum(tl.where((_key(x) > key) & (v < vocabulary), weight, 0.0), axis=0)
    return total


@triton.jit
def _sample(
    logits, out, temperatures, top_ks, top_ps, min_ps, seeds, positions, vocabulary, stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    best = tl.full((), float("-inf"), dtype=tl.float32)
    for first in range(0, vocabulary, BLOCK):
        x = _load(logits, row, first + tl.arange(0, BLOCK), vocabulary, stride)
        best = tl.maximum(best, tl.max(x, axis=0))
    rate = tl.where(temperature > 0, 1.0 / tl.where(temperature > 0, temperature, 1.0), 1.0)
    # Allowed are all tokens above `key`, and the first `ties` of those on it.
    key = tl.where(temperature > 0, 0, _key(best))
    ties = tl.where(temperature > 0, float("inf"), 1.0)
    if temperature > 0:
        if (top_k > 0) & (top_k < vocabulary):
            key = _threshold(logits, row, vocabulary, stride, best, rate, top_k.to(tl.float32), True, BLOCK)
            ties = top_k - _above(logits, row, vocabulary, stride, best, rate, key, True, BLOCK)
        if top_p < 1:
            mass = _above(logits, row, vocabulary, stride, best, rate, key, False, BLOCK)
            if key > 0:
                mass += ties * tl.exp((_value(key) - best) * rate)
            wanted = top_p * mass
            nucleus = _threshold(logits, row, vocabulary, stride, best, rate, wanted, False, BLOCK)
            if nucleus >= key:
                above = _above(logits, row, vocabulary, stride, best, rate, nucleus, False, BLOCK)
                each = tl.exp((_value(nucleus) - best) * rate)
                needed = tl.maximum(tl.ceil((wanted - above) / each), 1.0)
                ties = tl.where(nucleus == key, tl.minimum(ties, needed), needed)
                key = nucleus
    least = best + tl.log(tl.load(min_ps + row)) / rate
    seed = tl.load(seeds + row)
    position = tl.load(positions + row).to(tl.int32)
    winner = tl.full((), -1, dtype=tl.int64)
    highest = tl.full((), float("-inf"), dtype=tl.float32)
    seen = tl.zeros((), dtype=tl.float32)
    for first in range(0, vocabulary, BLOCK):
        v = first + tl.arange(0, BLOCK)
        x = _load(logits, row, v, vocabulary, stride)
        keys = _key(x)
        on = ((keys == key) & (v < vocabulary)).to(tl.float32)
        rank = seen + tl.cumsum(on, axis=0)
        seen += tl.sum(on, axis=0)
        allowed = (keys > key) | ((on > 0) & (rank <= ties))
        allowed = allowed & (x >= least) & (x > float("-inf")) & (v < vocabulary)
        bits, _, _, _ = tl.philox(seed, v, position + 0 * v, 0 * v, 0 * v)
        # In (0, 1), so that both logarithms are finite.
        uniform = ((bits >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08  # 2^-24
        noise = -tl.log(-tl.log(uniform))
        drawn = tl.where(allowed, (x - best) * rate + tl.where(temperature > 0, noise, 0.0), float("-inf"))
        top = tl.max(drawn, axis=0)
        place = tl.argmax(drawn, axis=0, tie_break_left=True)
        better = top > highest
        winner = tl.where(better, (first + place).to(tl.int64), winner)
        highest = tl.where(better, top, highest)
    tl.store(out + row, winner)
