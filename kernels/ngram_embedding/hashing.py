"""The fixed numbers of a hashed n-gram table: odd multipliers from a seed, and one prime table size per head.

Source: transformers Qwen4ExpTextNGramEmbedding; the generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

import math
from functools import cache

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_LAYER_STRIDE = 10007
_INT64_MAX = (1 << 63) - 1


def splitmix64(state: int) -> int:
    """The output of the generator for a 64-bit state."""
    z = (state + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def multipliers(vocab_size: int, ngram_size: int, layer_index: int, seed: int) -> tuple[int, ...]:
    """One odd factor per position of the n-gram, small enough that factor * token id fits in int64."""
    bound = max(1, _INT64_MAX // vocab_size // 2)
    start = seed + _LAYER_STRIDE * layer_index
    return tuple(2 * (splitmix64((start + _GAMMA * (i + 1)) & _MASK) % bound) + 1 for i in range(ngram_size))


def table_sizes(base: int, heads: int, layer_index: int) -> tuple[int, ...]:
    """The primes from `base` on, dealt out to the heads of all layers in order: those of one layer."""
    sizes: list[int] = []
    prime = base - 1
    for _ in range(heads * (layer_index + 1)):
        prime = next_prime(prime)
        sizes.append(prime)
    return tuple(sizes[-heads:])


@cache
def next_prime(number: int) -> int:
    """The smallest prime above `number`."""
    candidate = number + 1
    while not _is_prime(candidate):
        candidate += 1
    return candidate


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    return number % 2 == 1 and all(number % divisor for divisor in range(3, math.isqrt(number) + 1, 2))
