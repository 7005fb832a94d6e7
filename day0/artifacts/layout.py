"""Layout: what a package tells the engine about its memory."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

PAGE_TOKENS = 64

Role = Literal["token_paged", "per_sequence"]
# How a component goes back to an earlier position: a paged cache is cut, a state is restored from a checkpoint.
Rollback = Literal["truncate", "restore"]


class Component(BaseModel):
    """One piece of memory an operator owns.

    `shape` is one entry's shape. A token-paged component has one entry every `tokens_per_entry` tokens (a divisor of
    PAGE_TOKENS), a per-sequence one has one entry per sequence. `dtype` "activation" follows the package, "float32"
    does not.
    `index` marks what is read to choose tokens rather than to attend to them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: Literal["activation", "float32", "int64"] = "activation"
    tokens_per_entry: int = 1
    rollback: Rollback
    index: bool = False

    def entry_bytes(self, activation_bytes: int) -> int:
        """Bytes of one entry."""
        size = {"activation": activation_bytes, "float32": 4, "int64": 8}[self.dtype]
        for extent in self.shape:
            size *= extent
        return size


class Layout(BaseModel):
    """All components of a package. The engine allocates, checkpoints, rolls back and restores them together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    components: tuple[Component, ...]
    vocab_size: int
    max_positions: int | None = None

    def bytes_per_token(self, activation_bytes: int) -> float:
        paged = [c for c in self.components if c.role == "token_paged"]
        return sum(c.entry_bytes(activation_bytes) / c.tokens_per_entry for c in paged)

    def bytes_per_sequence(self, activation_bytes: int) -> int:
        return sum(c.entry_bytes(activation_bytes) for c in self.components if c.role == "per_sequence")
