"""Attributes, weights and state of the kind `recurrence`."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from day0.artifacts.layout import Component
from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

_DECAYS = "decay_width > 0 and decay_form != 'given'"
WEIGHTS = {
    "A_log": Shown("[value_heads]", _DECAYS, "logarithm of the rate", "float32"),
    "dt_bias": Shown("[decay_width]", _DECAYS, "added to the decay port", "float32"),
    "D": Shown("[value_heads]", "skip", "factor of the value in the output", "float32"),
}
STATE = {
    "state": Shown("[value_heads, key_dim, value_dim]", dtype="float32", role="per_sequence"),
}


class RecurrenceAttributes(Attributes):
    """A matrix state per value head, decayed and written once a token, then read by the query.

    Value head h uses key head h // (value_heads / key_heads): consecutive value heads share their query and key.
    """

    key_heads: int = Field(description="heads of the query and the key")
    value_heads: int = Field(description="heads of the value and of the state")
    key_dim: Size = Field(description="channels of one query or key")
    value_dim: Size = Field(description="channels of one value")
    delta_rule: bool = Field(
        description="write what the state does not already say of the value (the delta rule), or the value itself"
    )

    decay: Literal["none", "constant", "per_head", "per_channel"] = Field(
        description='"constant": one rate per head, fixed; "per_head" and "per_channel" (of the key): from a port'
    )
    decay_form: Literal["softplus", "bounded_sigmoid", "given", "time_step"] = Field(
        default="softplus",
        description="how the decay port f becomes the log decay g: -exp(A_log) * softplus(f + dt_bias); "
        "lower_bound * sigmoid(exp(A_log) * (f + dt_bias)); g = f; or g = -exp(A_log) * dt with a time step "
        "dt = softplus(f + dt_bias), kept within its limits, that multiplies the value too (state space models)",
    )
    lower_bound: float = Field(default=-5.0, description='the least g of "bounded_sigmoid"')
    time_step_min: float = Field(default=0.0, description='the least dt of "time_step"')
    time_step_max: float | None = Field(default=None, description='the largest dt of "time_step"; null: no limit')
    slope_scale: float = Field(
        default=1.0,
        description="constant decay of head h: g = -slope_scale * 2^(-8 (h + 1) / value_heads), the slopes of ALiBi",
    )

    beta: Literal["none", "sigmoid", "given"] = Field(
        default="none", description="strength of the write: 1, beta_scale * sigmoid(port), or the port itself"
    )
    beta_scale: float = Field(default=1.0, description='factor of the "sigmoid" beta')

    qk_norm: Literal["none", "l2"] = Field(
        default="none", description='"l2": q and k divided by sqrt(sum of squares + qk_norm_eps), per head'
    )
    qk_norm_eps: float = Field(default=1e-6, ge=0.0, description='eps of the "l2" norm')
    scale: float | None = Field(
        default=None,
        description="what multiplies the query; null is key_dim ** -0.5, as in scaled dot product attention",
    )
    skip: bool = Field(default=False, description="adds D * v to the output, with a weight D per value head")

    @field_validator("time_step_max")
    @classmethod
    def _infinity_is_no_limit(cls, value: float | None) -> float | None:
        return None if value == float("inf") else value

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.key_heads < 1 or self.value_heads < 1 or self.value_heads % self.key_heads:
            raise ValueError(f"{self.value_heads} value heads cannot share {self.key_heads} key heads")
        if self.decay == "per_channel" and self.decay_form == "time_step":
            raise ValueError("a time step belongs to a head: decay_form time_step needs decay per_head")
        return self

    @property
    def decay_width(self) -> int:
        """Channels of the decay port; 0 when there is none."""
        return {"per_head": self.value_heads, "per_channel": self.value_heads * self.key_dim}.get(self.decay, 0)

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {
            "delta_rule": (False, True),
            "decay_form": ("softplus", "bounded_sigmoid"),
            "beta": ("sigmoid", "given"),
            "beta_scale": (1.0, 2.0),
            "qk_norm": ("none", "l2"),
            "qk_norm_eps": (1e-5, 1e-6, 1e-12),
            "scale": (None, 1.0),
        }


def weights(a: RecurrenceAttributes) -> dict[str, Weight]:
    owned = {}
    if a.decay_width and a.decay_form != "given":
        owned["A_log"] = Weight((a.value_heads,), "float32")
        owned["dt_bias"] = Weight((a.decay_width,), "float32")
    if a.skip:
        owned["D"] = Weight((a.value_heads,), "float32")
    return owned


def state(a: RecurrenceAttributes) -> tuple[Component, ...]:
    shape = (a.value_heads, a.key_dim, a.value_dim)
    return (Component(name="state", role="per_sequence", shape=shape, dtype="float32", rollback="restore"),)
