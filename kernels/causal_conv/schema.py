"""Attributes, weights and state of the kind `causal_conv`."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from day0.artifacts.layout import Component
from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {
    "weight": Shown("[channels, kernel_size]", meaning="the last column is for the token itself"),
    "bias": Shown("[channels]", "bias"),
}
STATE = {
    "window": Shown(
        "[channels, window]", meaning="the last (kernel_size - 1) * dilation inputs, oldest first", role="per_sequence"
    )
}


class CausalConvAttributes(Attributes):
    """A depthwise convolution over the last `kernel_size` tokens, `dilation` apart, of every one of `channels` alone.

    `split` hands the output on as consecutive parts of these widths (they sum to `channels`).
    """

    channels: Size
    kernel_size: Size
    activation: Literal["none", "silu"] = Field(default="none", description="of the result")
    bias: bool = Field(default=False, description="whether a bias is added before the activation")
    dilation: Size = 1
    split: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _split_covers_the_channels(self) -> Self:
        if self.split and sum(self.split) != self.channels:
            raise ValueError(f"split {self.split} sums to {sum(self.split)}, channels is {self.channels}")
        return self

    @property
    def window(self) -> int:
        """How many earlier inputs the output depends on."""
        return (self.kernel_size - 1) * self.dilation

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {"activation": ("none", "silu"), "dilation": (1, 2, 3)}


def weights(a: CausalConvAttributes) -> dict[str, Weight]:
    owned = {"weight": Weight((a.channels, a.kernel_size))}
    return owned | ({"bias": Weight((a.channels,))} if a.bias else {})


def state(a: CausalConvAttributes) -> tuple[Component, ...]:
    """The last `window` inputs of every channel, oldest first; zero where the sequence had not begun."""
    return (Component(name="window", role="per_sequence", shape=(a.channels, a.window), rollback="restore"),)


def outputs(a: CausalConvAttributes) -> tuple[str, ...]:
    return tuple(f"y{i}" for i in range(len(a.split))) if a.split else ("y",)
