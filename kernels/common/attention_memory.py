"""What softmax attention remembers of each token: shared by the dense and the sparse kind.

Memory "kv" holds keys and values. Memory "latent" (MLA, arXiv 2405.04434) holds a normed latent, from which the weight
`kv_up` makes every head's keys and values, and a rotary part of the key that all heads share.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from day0.artifacts.layout import Component
from day0.kernels.interface.attributes import Attributes
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {
    "kv_up": Shown(
        "[heads * (nope_dim + value_dim), rank]",
        "memory == 'latent'",
        "per head, the rows that make its key's nope_dim channels, then those that make its value",
    )
}
STATE = {
    "keys": Shown("[kv_heads, head_dim]", "memory == 'kv'", role="token_paged"),
    "values": Shown("[kv_heads, value_dim]", "memory == 'kv'", role="token_paged"),
    "latents": Shown("[rank]", "memory == 'latent'", "normed", role="token_paged"),
    "rope_keys": Shown("[rope_dim]", "rope_dim > 0", "the rotary part that all heads share", role="token_paged"),
}
OWN: Mapping[str, tuple[str, ...]] = {"kv": ("kv_heads", "head_dim"), "latent": ("rank", "nope_dim", "rope_dim")}


class AttentionMemoryAttributes(Attributes):
    """`heads` query heads, values of `value_dim` channels, softmax over `scale` * q.k.

    Memory "kv": `kv_heads` heads of keys (`head_dim` channels) and values, each shared by heads / kv_heads consecutive
    query heads. Memory "latent": latents of `rank` channels; a key is `nope_dim` channels of kv_up's product followed
    by the shared `rope_dim` ones (0: there are none).
    """

    memory: Literal["kv", "latent"] = Field(description="what is remembered of each token")
    heads: int = Field(ge=1)
    value_dim: int = Field(ge=1)
    scale: float = Field(gt=0.0, description="multiplies the scores q.k before the softmax")
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
