"""Attributes and weights of the kind `norm`."""

from typing import Any, Literal

from pydantic import Field

from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {
    "weight": Shown("[groups * dim]", "weight != 'none'"),
    "bias": Shown("[groups * dim]", "bias"),
}


class NormAttributes(Attributes):
    """Normalises groups of `dim` channels; `groups` consecutive groups share one weight vector of groups * dim.

    y = weight * x / sqrt(mean(x^2) + eps) + bias, of which the attributes say what there is.
    """

    dim: int
    eps: float = Field(ge=0.0, description="added to the mean square (of the layer norm: the variance) under the root")
    form: Literal["rms", "layer"] = Field(default="rms", description='"layer" subtracts the mean first')
    groups: Size = 1
    weight: Literal["none", "plain", "one_plus"] = Field(
        default="plain", description='"one_plus": the factor is 1 + the weight'
    )
    bias: bool = Field(default=False, description="whether a bias is added")
    cast: Literal["before_weight", "after_weight"] = Field(
        default="before_weight",
        description="where y, computed in float32, goes back to the activation dtype: before or after the product with "
        "the weight",
    )
    gate: Literal["none", "silu", "sigmoid"] = Field(
        default="none", description="activation of a second input, by which the result is multiplied"
    )
    gate_order: Literal["after_norm", "before_norm"] = Field(
        default="after_norm", description="whether the gate multiplies the norm's result or its input"
    )

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {
            "eps": (1e-5, 1e-6, 1e-8),
            "form": ("rms", "layer"),
            "weight": ("none", "plain", "one_plus"),
            "gate": ("none", "silu", "sigmoid"),
            "gate_order": ("after_norm", "before_norm"),
        }


def weights(a: NormAttributes) -> dict[str, Weight]:
    shape = (a.groups * a.dim,)
    owned = {} if a.weight == "none" else {"weight": Weight(shape)}
    return owned | ({"bias": Weight(shape)} if a.bias else {})
