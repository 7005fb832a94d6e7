"""Attributes of the kind `gate`; it owns no weights."""

from typing import Any, Literal, Self

from pydantic import model_validator

from day0.kernels.interface.attributes import Attributes


class GateAttributes(Attributes):
    """Multiplies `channels` channels by a gate, on which `activation` stands.

    With `heads`, the gate holds one value for each of that many equal groups of consecutive channels; without, one
    for every channel.
    """

    channels: int
    activation: Literal["none", "sigmoid", "silu", "gelu_tanh"] = "sigmoid"
    heads: int | None = None

    @model_validator(mode="after")
    def _heads_divide_the_channels(self) -> Self:
        if self.heads is not None and (self.heads < 1 or self.channels % self.heads):
            raise ValueError(f"{self.channels} channels cannot be cut into {self.heads} heads")
        return self

    @property
    def gate_channels(self) -> int:
        return self.channels if self.heads is None else self.heads

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {"activation": ("none", "sigmoid", "silu", "gelu_tanh")}
