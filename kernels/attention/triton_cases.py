"""Problems at the edges of the dense kernel's contract, for day0.kernels.common.conformance."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from day0.kernels.attention.schema import weights
from day0.kernels.common.attention_memory import AttentionMemoryAttributes
from day0.kernels.common.conformance import Case

GQA = {"memory": "kv", "heads": 16, "kv_heads": 2, "head_dim": 64, "value_dim": 64, "scale": 0.125}
ODD = {"memory": "kv", "heads": 6, "kv_heads": 2, "head_dim": 24, "value_dim": 40, "scale": 0.2}
MANY_HEADS = {"memory": "kv", "heads": 144, "kv_heads": 2, "head_dim": 16, "value_dim": 16, "scale": 0.25}
ONE_HEAD = {"memory": "kv", "heads": 2, "kv_heads": 2, "head_dim": 32, "value_dim": 32, "scale": 0.2}
MLA = {"memory": "latent", "heads": 8, "rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 24, "scale": 0.15}
MLA_PLAIN = MLA | {"rope_dim": 0, "heads": 3}
WIDE_GQA = GQA | {"head_dim": 256, "value_dim": 128, "scale": 0.0625}
WIDE_MLA = MLA | {"rank": 512, "rope_dim": 64, "nope_dim": 128, "value_dim": 128, "heads": 64, "scale": 0.07}

# Lengths around a page (64) and a tile; several sequences, of which some sit a step out.
EDGES = ((63, 1, 1, 2), (65, 0, 3), (1, 1), (0, 64, 1))
DECODE = ((130, 1), (1, 1), (63, 1))
VERIFY = ((70, 4), (3, 1), (64, 16))


def ports(a: AttentionMemoryAttributes, n: int, generator: torch.Generator) -> tuple[Tensor | None, ...]:
    """q and one sequence's entries, of unit size."""
    widths = (a.kv_heads * a.head_dim, a.kv_heads * a.value_dim) if a.memory == "kv" else (a.rank, a.rope_dim or None)
    made = [None if w is None else torch.randn(n, w, dtype=torch.float64, generator=generator) for w in widths]
    return (torch.randn(n, a.heads * a.query_dim, dtype=torch.float64, generator=generator), *made)


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
    _case("72 heads a group", MANY_HEADS, DECODE),
    _case("one head a group", ONE_HEAD, EDGES),
    _case("mla edges", MLA, EDGES),
    _case("mla decode", MLA, DECODE),
    _case("mla verify", MLA, VERIFY, phase="verify"),
    _case("mla without rope", MLA_PLAIN, EDGES),
    _case("head dim 256", WIDE_GQA, DECODE),
    _case("mla rank 512", WIDE_MLA, ((70, 1), (3, 1))),
    _case("mla rank 512, rope 128", WIDE_MLA | {"rope_dim": 128}, ((70, 1), (3, 1))),
)
