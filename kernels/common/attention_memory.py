"""What softmax attention remembers of each token, and how it attends to it: shared by the dense and the sparse kind.

Memory "kv" holds keys and values. Memory "latent" (MLA, arXiv 2405.04434) holds a normed latent, from which the weight
`kv_up` makes every head's keys and values, and a rotary part of the key that all heads share.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from day0.artifacts.layout import Component
from day0.kernels.common.numerics import upcast
from day0.kernels.common.paged import append_tokens, sequence_tokens
from day0.kernels.interface.attributes import Attributes
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.kind import Weight

OWN: Mapping[str, tuple[str, ...]] = {"kv": ("kv_heads", "head_dim"), "latent": ("rank", "nope_dim", "rope_dim")}


class AttentionMemoryAttributes(Attributes):
    """`heads` query heads, values of `value_dim` channels, softmax over scale * q.k.

    Memory "kv": `kv_heads` heads of keys (`head_dim` channels) and values, each shared by heads / kv_heads consecutive
    query heads. Memory "latent": latents of `rank` channels; a key is `nope_dim` channels of kv_up's product followed
    by the shared `rope_dim` ones (0: there are none).
    """

    memory: Literal["kv", "latent"]
    heads: int = Field(ge=1)
    value_dim: int = Field(ge=1)
    scale: float = Field(gt=0.0)
    kv_heads: int = Field(default=0, ge=0)
    head_dim: int = Field(default=0, ge=0)
    rank: int = Field(default=0, ge=0)
    nope_dim: int = Field(default=0, ge=0)
    rope_dim: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _belongs_to_the_memory(self) -> "AttentionMemoryAttributes":
        foreign = [n for memory, names in OWN.items() if memory != self.memory for n in names if getattr(self, n)]
        if foreign:
            raise ValueError(f"{', '.join(foreign)} mean nothing with memory: {self.memory}")
        missing = [n for n in OWN[self.memory] if n != "rope_dim" and not getattr(self, n)]
        if missing:
            raise ValueError(f"memory: {self.memory} needs {', '.join(missing)}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly")
        return self

    @property
    def query_dim(self) -> int:
        """Channels of one query head."""
        return self.head_dim if self.memory == "kv" else self.nope_dim + self.rope_dim


def entry_shapes(a: AttentionMemoryAttributes) -> dict[str, tuple[int, ...]]:
    """Component name -> shape of one token's entry."""
    if a.memory == "kv":
        return {"keys": (a.kv_heads, a.head_dim), "values": (a.kv_heads, a.value_dim)}
    shapes: dict[str, tuple[int, ...]] = {"latents": (a.rank,)}
    return shapes | {"rope_keys": (a.rope_dim,)} if a.rope_dim else shapes


def components(a: AttentionMemoryAttributes) -> tuple[Component, ...]:
    return tuple(
        Component(name=name, role="token_paged", shape=shape, rollback="truncate")
        for name, shape in entry_shapes(a).items()
    )


def weights(a: AttentionMemoryAttributes) -> dict[str, Weight]:
    """`kv_up`: per head, the rows that make its key's nope_dim channels, then those that make its value."""
    if a.memory == "kv":
        return {}
    return {"kv_up": Weight((a.heads * (a.nope_dim + a.value_dim), a.rank))}


def remember(
    a: AttentionMemoryAttributes,
    batch: Batch,
    k_or_latent: Tensor,  # [N, kv_heads * head_dim], or [N, rank]
    v_or_rope_key: Tensor | None,  # [N, kv_heads * value_dim], or [N, rope_dim]; None when rope_dim is 0
    pools: Mapping[str, Tensor],  # by component name
) -> Iterator[tuple[slice, int, dict[str, Tensor]]]:
    """Per sequence: writes its new tokens' entries, then gives (its rows, its context length, all its entries).

    Entries are [context + new tokens, *shape] by component name. Raises ValueError when the ports are not the memory's.
    """
    shapes = entry_shapes(a)
    ports = [k_or_latent] if v_or_rope_key is None else [k_or_latent, v_or_rope_key]
    if len(ports) != len(shapes) or set(pools) != set(shapes):
        raise ValueError(f"memory {a.memory} takes {', '.join(shapes)}: got {len(ports)} ports, pools {sorted(pools)}")
    for sequence, (first, end, context) in enumerate(batch.spans()):
        entries = {}
        for name, port in zip(shapes, ports, strict=True):
            append_tokens(pools[name], batch, sequence, context, port[first:end])
            entries[name] = sequence_tokens(pools[name], batch, sequence, context + end - first)
        yield slice(first, end), context, entries


def expand(a: AttentionMemoryAttributes, entries: Mapping[str, Tensor], kv_up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every query head's keys [T, heads, query_dim] and values [T, heads, value_dim]."""
    if kv_up is None:
        shared = a.heads // a.kv_heads
        return entries["keys"].repeat_interleave(shared, dim=1), entries["values"].repeat_interleave(shared, dim=1)
    made = torch.nn.functional.linear(entries["latents"], kv_up).reshape(-1, a.heads, a.nope_dim + a.value_dim)
    keys, values = made.tensor_split((a.nope_dim,), dim=-1)
    if a.rope_dim:
        keys = torch.cat((keys, entries["rope_keys"][:, None].expand(-1, a.heads, -1)), dim=-1)
    return keys, values


def probabilities(scores: Tensor, visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Softmax of scores [n, heads, T] over the visible [n, T], then the cast to the activation dtype.

    A query that sees nothing gets zeros.
    """
    hidden = ~visible[:, None]
    # Every score of a blind row is -inf and its softmax NaN; the second fill makes that 0.
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).masked_fill(hidden, 0.0).to(dtype)


def attend(
    q: Tensor,  # [n, heads, query_dim]
    keys: Tensor,  # [T, heads, query_dim]
    values: Tensor,  # [T, heads, value_dim]
    visible: Tensor,  # [n, T] bool
    scale: float,
) -> Tensor:  # [n, heads, value_dim]
    """softmax(scale * q k^T) v per head: scores and softmax in float32, the product with v in the activation dtype."""
    scores = torch.einsum("nhd,thd->nht", upcast(q), upcast(keys)) * scale
    return torch.einsum("nht,thd->nhd", probabilities(scores, visible, q.dtype), values)


def attend_absorbed(
    a: AttentionMemoryAttributes,
    q: Tensor,  # [n, heads, nope_dim + rope_dim]
    entries: Mapping[str, Tensor],
    kv_up: Tensor,
    visible: Tensor,  # [n, T] bool
) -> Tensor:  # [n, heads, value_dim]
    """The same as `expand` and `attend` over latents, with kv_up moved to the queries and the result.

    q.(W_k c) = (W_k^T q).c and sum_t p_t W_v c_t = W_v sum_t p_t c_t (arXiv 2405.04434, section 2.1.2), so that no key
    or value is ever made: less work when few queries read a long context.
    """
    make_keys, make_values = kv_up.reshape(a.heads, -1, a.rank).tensor_split((a.nope_dim,), dim=1)
    plain, rotary = q.tensor_split((a.nope_dim,), dim=-1)
    latents = entries["latents"]
    absorbed = torch.einsum("nhd,hdr->nhr", plain, make_keys)
    scores = torch.einsum("nhr,tr->nht", upcast(absorbed), upcast(latents))
    if a.rope_dim:
        scores = scores + torch.einsum("nhd,td->nht", upcast(rotary), upcast(entries["rope_keys"]))
    read = torch.einsum("nht,tr->nhr", probabilities(scores * a.scale, visible, q.dtype), latents)
    return torch.einsum("nhr,hdr->nhd", read, make_values)
