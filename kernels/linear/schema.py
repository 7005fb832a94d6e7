"""Attributes and weights of the kind `linear`."""

from pydantic import Field, model_validator

from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {"weight": Shown("[out_features, in_features]"), "bias": Shown("[out_features]", "bias")}


class LinearAttributes(Attributes):
    """`split` hands the output on as consecutive parts of these widths (they sum to `out_features`).

    `softcap` c > 0 makes the result c * tanh(y / c). `float32` computes in float32 whatever the activation dtype.
    """

    in_features: Size = Field(description="channels of x")
    out_features: Size = Field(description="channels of y, of all its parts together")
    bias: bool = Field(default=False, description="whether b is added")
    split: tuple[int, ...] = ()
    softcap: float = Field(default=0.0, ge=0.0)
    scale: float = Field(default=1.0, description="multiplies x W^T + b")
    float32: bool = False

    @model_validator(mode="after")
    def _split_makes_up_the_output(self) -> "LinearAttributes":
        if self.split and (min(self.split) < 1 or sum(self.split) != self.out_features):
            raise ValueError(f"split {list(self.split)} does not cut {self.out_features} out_features into parts")
        return self


def weights(a: LinearAttributes) -> dict[str, Weight]:
    owned = {"weight": Weight((a.out_features, a.in_features))}
    return owned | ({"bias": Weight((a.out_features,))} if a.bias else {})


def outputs(a: LinearAttributes) -> tuple[str, ...]:
    return tuple(f"y{i}" for i in range(len(a.split))) if a.split else ("y",)
