"""Attributes of the kind `rotary`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from day0.kernels.common.channel_layout import Layout
from day0.kernels.interface.attributes import Attributes

YARN_ONLY = (
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
)


class RotaryAttributes(Attributes):
    """Rotates channels `offset` .. offset + `rotary_dim` - 1 of every head of `head_dim` channels; the others stay.

    `float32_tables` keeps cos and sin in float32 for the product; otherwise they are cast to the activation dtype.
    From `factor` on the attributes belong to `scaling: yarn` alone. `attention_factor` multiplies cos and sin; null
    infers it from `factor`, `mscale` and `mscale_all_dim` (0: not set) as transformers does.
    """

    head_dim: int = Field(ge=2)
    rotary_dim: int = Field(ge=2, multiple_of=2)
    theta: float = Field(
        gt=1.0, description="base of the frequencies: pair i turns by theta^(-2i / rotary_dim) a token"
    )
    offset: int = Field(default=0, ge=0)
    layout: Layout = Field(
        default="half",
        description='which channels are a pair: i and i + rotary_dim / 2 ("half"), 2i and 2i + 1 ("interleaved"), or '
        'those, handed on in the order of "half" ("interleaved_to_half")',
    )
    float32_tables: bool = False
    scaling: Literal["none", "yarn"] = "none"
    factor: float = Field(default=1.0, ge=1.0, description="how much longer the context is made")
    original_max_position_embeddings: int = Field(default=0, ge=0, description="tokens of the context before scaling")
    beta_fast: float = Field(default=32.0, gt=0.0, description="pairs that turn more often in that context are kept")
    beta_slow: float = Field(default=1.0, gt=0.0, description="pairs that turn less often are slowed down by factor")
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = Field(default=True, description="whether the bounds between these pairs are whole numbers")

    @model_validator(mode="after")
    def _consistent(self) -> "RotaryAttributes":
        if self.offset + self.rotary_dim > self.head_dim:
            last = self.offset + self.rotary_dim - 1
            raise ValueError(f"channels {self.offset}..{last} are not all inside a head of {self.head_dim}")
        if self.scaling == "none":
            given = [n for n in YARN_ONLY if getattr(self, n) != type(self).model_fields[n].default]
            if given:
                raise ValueError(f"{', '.join(given)} need scaling: yarn")
        elif self.original_max_position_embeddings == 0:
            raise ValueError("scaling: yarn needs original_max_position_embeddings")
        if self.attention_factor is not None and (self.mscale or self.mscale_all_dim):
            raise ValueError("attention_factor is given, so mscale and mscale_all_dim would have no effect")
        return self

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {
            "layout": ("half", "interleaved", "interleaved_to_half"),
            "theta": (1e4, 1e5, 5e5, 1e6, 1e7),
            "float32_tables": (False, True),
            "truncate": (True, False),
        }
