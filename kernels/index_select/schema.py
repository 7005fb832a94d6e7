"""Attributes, weights and state of the kind `index_select`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from day0.artifacts.layout import PAGE_TOKENS, Component
from day0.kernels.interface.attributes import Attributes
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {
    "pool_bias": Shown("[pool, dim]", "pooling == 'softmax'", "added to the gate of a pool's j-th token"),
    "pooled_norm": Shown("[dim]", "pooled_norm_eps > 0", "the pooled keys are multiplied by 1 + it"),
}
STATE = {
    "keys": Shown("[dim]", "pooling == 'none'", role="token_paged"),
    "pooled_keys": Shown("[dim]", "pooling != 'none'", "one for each complete pool of tokens", role="token_paged"),
    "tail_keys": Shown("[pool, dim]", "pooling != 'none'", "raw, of the incomplete pool", role="per_sequence"),
    "tail_gates": Shown("[pool, dim]", "pooling == 'softmax'", "raw, of the incomplete pool", role="per_sequence"),
}


class IndexSelectAttributes(Attributes):
    """Scores what is visible with `heads` queries of `dim` channels against one key, and keeps the best.

    `budget` counts tokens. With `pooling` the candidates are complete pools of `pool` tokens, aligned to the sequence's
    first, budget // pool of them are kept with all their tokens, and a pool is visible once its last token is. `tail`
    adds the visible tokens of the incomplete pool. Pooled keys are then normalised with weight 1 + `pooled_norm`
    (`pooled_norm_eps` 0: not) and their first `pooled_rotary_dim` channels rotated, half layout, at the pool's first
    position.

    score "relu_weighted": sum_h weight_scale w_h relu(scale q_h.k), w from a port; "relu_sum": sum_h relu(scale q_h.k).
    """

    heads: int = Field(ge=1)
    dim: int = Field(ge=1)
    budget: int = Field(ge=1)
    scale: float = Field(gt=0.0, description="multiplies q_h.k before the relu")
    score: Literal["relu_weighted", "relu_sum"] = Field(description="how the heads' products become one score")
    weight_scale: float = Field(default=1.0, gt=0.0, description='multiplies the heads\' weights of "relu_weighted"')
    pooling: Literal["none", "softmax", "mean"] = Field(
        default="none", description="how a pool's keys become one: their mean, or weighted by a softmax of gates"
    )
    pool: int = Field(default=1, ge=1)
    tail: bool = False
    pooled_norm_eps: float = Field(default=0.0, ge=0.0)
    pooled_rotary_dim: int = Field(default=0, ge=0, multiple_of=2)
    pooled_rotary_theta: float = Field(default=0.0, ge=0.0, description="base of the pooled keys' rotation")

    @model_validator(mode="after")
    def _consistent(self) -> "IndexSelectAttributes":
        if self.score == "relu_sum" and self.weight_scale != 1.0:
            raise ValueError("score: relu_sum has no weights, so weight_scale means nothing")
        if self.pooling == "none":
            given = [
                name
                for name in ("pool", "tail", "pooled_norm_eps", "pooled_rotary_dim", "pooled_rotary_theta")
                if getattr(self, name) != type(self).model_fields[name].default
            ]
            if given:
                raise ValueError(f"{', '.join(given)} need a pooling")
        elif PAGE_TOKENS % self.pool:
            raise ValueError(f"pools of {self.pool} tokens do not fit pages of {PAGE_TOKENS}")
        if self.budget % self.pool:
            raise ValueError(f"a budget of {self.budget} tokens is no multiple of pools of {self.pool}")
        if self.pooled_rotary_dim > self.dim:
            raise ValueError(f"pooled_rotary_dim {self.pooled_rotary_dim} exceeds dim {self.dim}")
        if (self.pooled_rotary_dim > 0) != (self.pooled_rotary_theta > 1.0):
            raise ValueError("pooled_rotary_dim and a pooled_rotary_theta above 1 go together")
        return self

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.budget + (self.pool - 1 if self.tail else 0)

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {
            "score": ("relu_weighted", "relu_sum"),
            "tail": (False, True),
            "pooled_norm_eps": (1e-5, 1e-6),
            "pooled_rotary_theta": (1e4, 1e5, 5e5, 1e6, 1e7),
        }


def weights(a: IndexSelectAttributes) -> dict[str, Weight]:
    """`pool_bias` is added to the gate of a pool's j-th token, `pooled_norm` is the pooled keys' norm weight."""
    owned = {"pool_bias": Weight((a.pool, a.dim))} if a.pooling == "softmax" else {}
    return owned | ({"pooled_norm": Weight((a.dim,))} if a.pooled_norm_eps else {})


def dense_limit(a: IndexSelectAttributes) -> int | None:
    """The most visible tokens that are all selected, whatever their scores; None when no number is sure to be.

    Pools without a tail drop the tokens after the last complete pool, so no length makes that selection dense.
    """
    if a.pooling != "none" and not a.tail and a.pool > 1:
        return None
    return a.budget // a.pool * a.pool + (a.pool - 1 if a.tail else 0)


def components(a: IndexSelectAttributes) -> tuple[Component, ...]:
    """One key per token, or one finished key per complete pool and the raw inputs of the incomplete one."""
    if a.pooling == "none":
        return (Component(name="keys", role="token_paged", shape=(a.dim,), rollback="truncate", index=True),)
    pooled = Component(
        name="pooled_keys",
        role="token_paged",
        shape=(a.dim,),
        tokens_per_entry=a.pool,
        rollback="truncate",
        index=True,
    )
    kept = ("tail_keys", "tail_gates") if a.pooling == "softmax" else ("tail_keys",)
    # A pooled key cannot be taken apart again, so going back to within a pool needs the checkpointed tail.
    tails = (
        Component(name=name, role="per_sequence", shape=(a.pool, a.dim), rollback="restore", index=True)
        for name in kept
    )
    return (pooled, *tails)
