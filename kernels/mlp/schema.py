"""Attributes and weights of the kind `mlp`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {
    "gate_up": Shown("[2 * hidden, width]", "gated", "the rows of the gate, then those of up"),
    "up": Shown("[hidden, width]", "not gated"),
    "down": Shown("[width, hidden]"),
}


class MlpAttributes(Attributes):
    """`width` -> `hidden` -> `width`. `gated`: act(gate) * up; otherwise act(up) alone (nemotron_h's relu2).

    `clamp` L > 0 cuts the gate to at most L and up to [-L, L] before the activation; 0 cuts nothing.
    """

    width: Size
    hidden: Size
    activation: Literal["silu", "gelu_tanh", "relu", "relu2"] = Field(
        default="silu", description='act; "relu2" is the square of the relu'
    )
    gated: bool = True
    clamp: float = Field(default=0.0, ge=0.0)

    @model_validator(mode="after")
    def _clamp_belongs_to_a_gate(self) -> "MlpAttributes":
        if self.clamp != 0.0 and not self.gated:
            raise ValueError("clamp limits gate and up of a gated mlp; this one has gated: false")
        return self

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {"activation": ("silu", "gelu_tanh", "relu", "relu2"), "clamp": (0.0, 7.0, 10.0)}


def weights(a: MlpAttributes) -> dict[str, Weight]:
    first = {"gate_up": Weight((2 * a.hidden, a.width))} if a.gated else {"up": Weight((a.hidden, a.width))}
    return first | {"down": Weight((a.width, a.hidden))}
