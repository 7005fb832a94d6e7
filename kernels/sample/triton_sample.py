# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Draws the next token of every sequence without sorting the vocabulary.

With one exponential number E per token, the token with the largest probability / E is a draw (Gumbel 1954), and that
holds for any set of tokens with the same numbers. So the draw from all tokens is the answer if it is allowed; if not,
nothing behind it in the order of probability is, and the next attempt is the draw from the tokens before it: what those
weigh, which says whether it was allowed, is added up in the same pass. The numbers come from a counter-based generator
over (seed, position, token): a draw depends on nothing but the sequence's own logits and options, not on batch mates.

The first pass is spread over the device, and leaves the largest logit of every group of tokens. Later passes are by one
program a sequence, and only over those groups that can hold what it looks for: the k best tokens, too, as k tokens at
least reach the k-th largest of the groups' largest logits.
"""

import triton
import triton.language as tl
from torch import Tensor, float32, int32, int64

from day0.kernels.common.triton_launch import INTERPRETED, next_power_of_2, require, require_tensor

# Tokens of a group; groups of a program of the first pass, and of a block of the others. Interpreted, small ones, so
# that small vocabularies go over several.
_GROUP, _PART = (16, 4) if INTERPRETED else (64, 64)
SIGN: tl.constexpr = tl.constexpr(-(2**31))


def workspace(rows: int, vocabulary: int) -> int:
    """float32 numbers that `sample` needs as scratch."""
    parts = -(-vocabulary // (_PART * _GROUP))
    return rows * parts * (4 + 2 * _PART)


def sample(
    logits: Tensor,  # [B, V] float32, float16 or bfloat16
    out: Tensor,  # [B] int64: the tokens
    *,
    temperature: Tensor,  # [B] float32; 0: the best token
    top_k: Tensor,  # [B] int32; 0: all
    top_p: Tensor,  # [B] float32, above 0
    min_p: Tensor,  # [B] float32
    seed: Tensor,  # [B] int64
    position: Tensor,  # [B] int64: how many tokens the sequence has, so that each draw is new
    scratch: Tensor,  # [workspace(B, V)] float32, written
) -> None:
    """Fill `out`. What is allowed: `reference.allowed`. A row without any finite logit gives -1.

    Raises ContractError on other shapes and dtypes.
    """
    kernel = "sample"
    rows = logits.shape[0]
    require_tensor(kernel, "logits", logits, (None, None))
    require(logits.dtype.is_floating_point and logits.dtype.itemsize <= 4, kernel, "logits in float32 or smaller")
    vocabulary = logits.shape[1]
    require(0 < vocabulary < 2**30, kernel, "a vocabulary of 1 to 2^30 tokens")
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
    needed = workspace(rows, vocabulary)
    require_tensor(kernel, "scratch", scratch, (None,), (float32,))
    require(scratch.shape[0] >= needed, kernel, f"scratch of {needed} numbers")
    if rows == 0:
        return
    parts = -(-vocabulary // (_PART * _GROUP))
    _scan[(rows, parts)](
        logits, scratch, scratch.view(int32), temperature, seed, position, vocabulary, logits.stride(0), parts,
        PART=_PART, GROUP=_GROUP, num_warps=4,
    )  # fmt: skip
    _settle[(rows,)](
        logits, out, scratch, scratch.view(int32), temperature, top_k, top_p, min_p, seed, position,
        vocabulary, logits.stride(0), parts, PARTS=next_power_of_2(parts), PART=_PART, GROUP=_GROUP, num_warps=8,
    )  # fmt: skip


@triton.jit
def _load(logits, row, v, vocabulary, stride):
    """Logits as float32, inf as the largest number; -inf for NaN and outside the vocabulary."""
    x = tl.load(logits + row * stride + v, mask=v < vocabulary, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, tl.minimum(x, 3.4028234663852886e38), float("-inf"))


@triton.jit
def _key(x):
    """float32 as int32 of the same order; -0.0 and 0.0 are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """The float32 that `_key` made this from."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _rate(temperature):
    """1 / temperature, finite; 1 where the best token is asked for."""
    return tl.where(temperature > 0, tl.minimum(1.0 / tl.where(temperature > 0, temperature, 1.0), 1e38), 1.0)


@triton.jit
def _exponential(group, seed, position, GROUP: tl.constexpr):
    """[groups, GROUP] of the exponential distribution: Philox-4x32 of 7 rounds (Salmon et al. 2011), 4 numbers a turn.

    -log(1 - u) for a uniform u that is never 0 or 1; small u, which win, by the series, where a logarithm near 1 has no
    digits left.
    """
    counter = group[:, None] * (GROUP // 4) + tl.arange(0, GROUP // 4)[None, :]
    a, b, c, d = tl.philox(seed, counter, position + 0 * counter, 0 * counter, 0 * counter, n_rounds=7)
    bits = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (group.shape[0], GROUP))
    u = tl.minimum((bits.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))
    return tl.where(u < 0.015625, series, -0.6931471805599453 * tl.log2(1.0 - u))


@triton.jit
def _draw(score, v):
    """The largest score and its token; of equal ones the first."""
    top = tl.max(score, axis=None)
    return top, tl.min(tl.where(score == top, v, 2147483647), axis=None)


@triton.jit
def _scan(
    logits, scratch, places, temperatures, seeds, positions, vocabulary, stride, parts,
    PART: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Per part: largest logit, weight, score and token of its draw. Per group: largest logit. Grid: [rows, parts]."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    temperature = tl.load(temperatures + row)
    rate = _rate(temperature)
    group = part * PART + tl.arange(0, PART)
    v = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = _load(logits, row, v, vocabulary, stride)
    tops = tl.max(x, axis=1)
    best = tl.max(tops, axis=0)
    weight = tl.exp((x - tl.maximum(best, -3.4028234663852886e38)) * rate)
    if temperature > 0:
        e = _exponential(group, tl.load(seeds + row), tl.load(positions + row).to(tl.int32), GROUP)
        score = tl.where(x > float("-inf"), weight / e, float("-inf"))
    else:
        score = x
    top, token = _draw(score, v)
    at = scratch + row * parts * (4 + 2 * PART)
    tl.store(at + part, best)
    tl.store(at + parts + part, tl.sum(weight, axis=None))
    tl.store(at + 2 * parts + part, top)
    tl.store(places + row * parts * (4 + 2 * PART) + 3 * parts + part, token)
    tl.store(at + 4 * parts + group, tops)


@triton.jit
def _tile(
    values, listed, first, groups, row, size, stride, LISTED: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr
):
    """Values [PART * GROUP] of groups first .. first + PART - 1, or of the groups in those places of a list.

    Also which numbers they have, and the groups [PART]. What is not there is -inf with a number past all others.
    """
    group = first + tl.arange(0, PART)
    if LISTED:
        group = tl.load(listed + group, mask=group < groups, other=1 << 24)
    v = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    return _load(values, row, v, size, stride), v, group


@triton.jit
def _threshold(
    values, listed, groups, row, size, stride, wanted, LISTED: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr
):
    """The largest key that at least `wanted` values reach; of groups of a list, or of all `size` values.

    Four bits at a time: a pass counts the values at or above each of 16 candidates.
    """
    found = tl.zeros((), dtype=tl.int32)  # without the sign, whose bit orders the other way round
    digit = tl.arange(0, 16)
    for step in range(8):
        pivot = (found | (digit << (28 - 4 * step))) ^ SIGN
        reached = tl.zeros((16,), dtype=tl.int32)
        for first in range(0, groups, PART):
            x, v, _ = _tile(values, listed, first, groups, row, size, stride, LISTED, PART, GROUP)
            keys = tl.where(v < size, _key(x), SIGN)
            keys = tl.reshape(keys, (PART * GROUP,))
            reached += tl.sum((keys[None, :] >= pivot[:, None]).to(tl.int32), axis=1)
        # The first candidate is the prefix itself, which is known to reach.
        last = tl.max(tl.where((reached >= wanted) | (digit == 0), digit, 0), axis=0)
        found = found | (last << (28 - 4 * step))
    return found ^ SIGN


@triton.jit
def _narrow(tops, listed, groups, key, PART: tl.constexpr):
    """Lists the groups whose largest logit reaches `key`, in order, and gives their number."""
    tl.debug_barrier()  # all threads have read the list before
    count = tl.zeros((), dtype=tl.int32)
    for first in range(0, groups, PART * 16):
        group = first + tl.arange(0, PART * 16)
        reaches = _key(tl.load(tops + group, mask=group < groups, other=float("-inf"))) >= key
        kept = (reaches & (group < groups)).to(tl.int32)
        place = count + tl.cumsum(kept, axis=0) - kept
        tl.store(listed + place, group, mask=kept > 0)
        count += tl.sum(kept, axis=0)
    tl.debug_barrier()
    return count


@triton.jit
def _nth_of_equals(
    logits, listed, groups, row, vocabulary, stride, key, wanted, PART: tl.constexpr, GROUP: tl.constexpr
):
    """The token where the `wanted` tokens end that are above `key` or, in order, on it."""
    above = tl.zeros((), dtype=tl.int32)
    for first in range(0, groups, PART):
        x, _, _ = _tile(logits, listed, first, groups, row, vocabulary, stride, True, PART, GROUP)
        above += tl.sum((_key(x) > key).to(tl.int32), axis=None)
    rest = wanted - above
    token = tl.zeros((), dtype=tl.int32)
    for first in range(0, groups, PART):
        x, v, _ = _tile(logits, listed, first, groups, row, vocabulary, stride, True, PART, GROUP)
        on = tl.reshape(((_key(x) == key) & (v < vocabulary)).to(tl.int32), (PART * GROUP,))
        is_last = (on > 0) & (tl.cumsum(on, axis=0) == rest)
        token += tl.sum(tl.where(is_last, tl.reshape(v, (PART * GROUP,)), 0), axis=0)
        # Where it was found, no later block counts down to zero again.
        rest -= tl.sum(on, axis=0)
    return token


@triton.jit
def _before(
    logits, listed, groups, row, vocabulary, stride, best, rate, seed, position, key, token,
    PART: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Of the tokens in front of (key, token): their weight, and the draw from them. None: weight 0, token 2^31 - 1."""
    mass = tl.zeros((), dtype=tl.float32)
    highest = tl.full((), float("-inf"), dtype=tl.float32)
    drawn = tl.full((), 2147483647, dtype=tl.int32)
    for first in range(0, groups, PART):
        x, v, group = _tile(logits, listed, first, groups, row, vocabulary, stride, True, PART, GROUP)
        keys = _key(x)
        inside = ((keys > key) | ((keys == key) & (v < token))) & (x > float("-inf"))
        weight = tl.where(inside, tl.exp((x - best) * rate), 0.0)
        mass += tl.sum(weight, axis=None)
        score = tl.where(inside, weight / _exponential(group, seed, position, GROUP), float("-inf"))
        top, place = _draw(score, v)
        drawn = tl.where(top > highest, place, drawn)
        highest = tl.maximum(top, highest)
    return mass, drawn


@triton.jit
def _settle(
    logits, out, scratch, places, temperatures, top_ks, top_ps, min_ps, seeds, positions, vocabulary, stride, parts,
    PARTS: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = scratch + row * parts * (4 + 2 * PART)
    places += row * parts * (4 + 2 * PART)
    temperature = tl.load(temperatures + row)
    rate = _rate(temperature)
    part = tl.arange(0, PARTS)
    bests = tl.load(at + part, mask=part < parts, other=float("-inf"))
    best = tl.max(bests, axis=0)
    if best == float("-inf"):
        tl.store(out + row, -1)
        return
    scores = tl.load(at + 2 * parts + part, mask=part < parts, other=float("-inf"))
    if temperature > 0:
        scores = tl.log(scores) + (bests - best) * rate
    scores = tl.where(bests > float("-inf"), scores, float("-inf"))
    drawn = tl.load(places + 3 * parts + part, mask=part < parts, other=2147483647)
    _, token = _draw(scores, drawn)
    if temperature > 0:
        weights = tl.load(at + parts + part, mask=part < parts, other=0.0)
        mass = tl.sum(tl.where(bests > float("-inf"), weights * tl.exp((bests - best) * rate), 0.0), axis=0)
        seed = tl.load(seeds + row)
        position = tl.load(positions + row).to(tl.int32)
        top_k = tl.load(top_ks + row)
        tops = at + 4 * parts
        listed = places + parts * (4 + PART)
        groups = tl.cdiv(vocabulary, GROUP)
        if (top_k > 0) & (top_k < vocabulary):
            key = tl.full((), SIGN, dtype=tl.int32)
            if top_k < groups:
                key = _threshold(tops, listed, tl.cdiv(groups, GROUP), 0, groups, 0, top_k, False, PART, GROUP)
            count = _narrow(tops, listed, groups, key, PART)
            key = _threshold(logits, listed, count, row, vocabulary, stride, top_k, True, PART, GROUP)
            last = _nth_of_equals(logits, listed, count, row, vocabulary, stride, key, top_k, PART, GROUP)
            mass, token = _before(
                logits, listed, count, row, vocabulary, stride, best, rate, seed, position, key, last + 1, PART, GROUP
            )  # fmt: skip
        wanted = tl.load(top_ps + row) * mass
        everything = tl.load(top_ps + row) >= 1
        least = best + tl.log(tl.load(min_ps + row)) / rate
        settled = False
        while not settled:
            x = _load(logits, row, token, vocabulary, stride)
            settled = everything & (x >= least)
            if not settled:
                key = _key(x)
                count = _narrow(tops, listed, groups, key, PART)
                before, other = _before(
                    logits, listed, count, row, vocabulary, stride, best, rate, seed, position, key, token, PART, GROUP
                )  # fmt: skip
                settled = (((before < wanted) | everything) & (x >= least)) | (before == 0.0)
                token = tl.where(settled, token, other)
    tl.store(out + row, token.to(tl.int64))
