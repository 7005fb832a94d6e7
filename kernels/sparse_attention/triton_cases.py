"""Problems at the edges of the sparse kernel's contract, for day0.kernels.common.conformance."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.attention_memory import AttentionMemoryAttributes
from day0.kernels.common.conformance import Case
from day0.kernels.sparse_attention.schema import SparseAttentionAttributes, weights

WIDTH = 37  # neither a tile nor a multiple of one
GQA = {"memory": "kv", "heads": 16, "kv_heads": 2, "head_dim": 64, "value_dim": 64, "scale": 0.125, "width": WIDTH}
ODD = {"memory": "kv", "heads": 6, "kv_heads": 2, "head_dim": 24, "value_dim": 40, "scale": 0.2, "width": WIDTH}
MLA = {
    "memory": "latent",
    "heads": 8,
    "rank": 64,
    "nope_dim": 32,
    "rope_dim": 16,
    "value_dim": 24,
    "scale": 0.15,
    "width": WIDTH,
}
MLA_PLAIN = MLA | {"rope_dim": 0, "heads": 3}
LONG_LIST = MLA | {"width": 100}
WIDE_MLA = MLA | {
    "rank": 512,
    "rope_dim": 64,
    "nope_dim": 128,
    "value_dim": 128,
    "heads": 64,
    "scale": 0.07,
    "width": 70,
}

EDGES = ((37, 1, 1), (4, 0, 3), (0, 6, 1))
DECODE = ((66, 1), (1, 1), (3, 1))
VERIFY = ((30, 4), (3, 1), (2, 8))


def chosen(n: int, width: int, generator: torch.Generator) -> Tensor:
    """[n, width] lists: a random part of each position's past in random order with holes anywhere, some empty."""
    indices = torch.full((n, width), -1)
    for t in range(n):
        most = min(t + 1, width)
        # All that there is, nothing, or some of it.
        count = (most, 0, int(torch.randint(1, most + 1, (), generator=generator)))[(0, 2, 2, 1)[t % 4]]
        columns = torch.randperm(width, generator=generator)[:count]
        indices[t, columns] = torch.randperm(t + 1, generator=generator)[:count]
    return indices


def ports(a: SparseAttentionAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    """q, lists, and one sequence's entries, of unit size."""
    widths = (a.kv_heads * a.head_dim, a.kv_heads * a.value_dim) if a.memory == "kv" else (a.rank, a.rope_dim or None)
    made = [None if w is None else torch.randn(n, w, dtype=torch.float64, generator=generator) for w in widths]
    q = torch.randn(n, a.heads * a.query_dim, dtype=torch.float64, generator=generator)
    return (q, chosen(n, a.width, generator), *made)


def random_weights(a: AttentionMemoryAttributes, generator: torch.Generator) -> Mapping[str, Tensor]:
    """kv_up, of a size that keeps keys and values near 1."""
    return {
        name: w.shape[-1] ** -0.5 * torch.randn(w.shape, dtype=torch.float64, generator=generator)
        for name, w in weights(a).items()
    }


def _case(name: str, attributes: Mapping[str, Any], chunks: tuple[tuple[int, ...], ...], **more: Any) -> Case:
    return Case(name, attributes, chunks, ports, random_weights, **more)


CASES = (
    _case("gqa edges", GQA, EDGES),
    _case("gqa decode", GQA, DECODE),
    _case("gqa verify", GQA, VERIFY, phase="verify"),
    _case("odd widths", ODD, EDGES),
    _case("mla edges", MLA, EDGES),
    _case("mla decode", MLA, DECODE),
    _case("mla verify", MLA, VERIFY, phase="verify"),
    _case("mla without rope", MLA_PLAIN, EDGES),
    _case("lists longer than the context", LONG_LIST, DECODE),
    _case("mla rank 512", WIDE_MLA, ((6, 1), (3, 1))),
)
