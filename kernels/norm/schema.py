"""Attributes and weights of the kind `norm`."""

from typing import Any, Literal

from pydantic import Field

from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Weight


class NormAttributes(Attributes):
    """Normalises groups of `dim` channels; `groups` consecutive groups share one weight vector of groups * dim."""

    dim: int
    eps: float = Field(ge=0.0)
    form: Literal["rms", "layer"] = "rms"
    groups: Size = 1
    weight: Literal["none", "plain", "one_plus"] = "plain"
    bias: bool = False
    # Where the result goes back to the activation dtype: before or after the product with the weight.
    cast: Literal["before_weight", "after_weight"] = "before_weight"
    gate: Literal["none", "silu", "sigmoid"] = "none"
    gate_order: Literal["after_norm", "before_norm"] = "after_norm"

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
