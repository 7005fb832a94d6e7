"""Attributes and weights of the kind `moe`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {
    "router": Shown("[experts, width]"),
    "router_bias": Shown("[experts]", "selection_bias", "added to the scores by which experts are chosen", "float32"),
    "gate_up": Shown("[experts, 2 * hidden, width]", "", "of each expert the rows of the gate, then those of up"),
    "down": Shown("[experts, width, hidden]"),
    "shared_gate_up": Shown("[2 * shared_hidden, width]", "shared_hidden > 0"),
    "shared_down": Shown("[width, shared_hidden]", "shared_hidden > 0"),
    "shared_gate": Shown("[1, width]", "shared_gate == 'sigmoid'"),
}


class MoeAttributes(Attributes):
    """Each token goes to `top_k` of `experts` gated networks `width` -> `hidden` -> `width`, chosen by a router.

    A token's weights are the chosen experts' scores; `renormalise` divides them by (their sum + `renormalise_eps`),
    then they are multiplied by `routed_scale`. Experts of equal score are taken in index order.
    """

    width: Size
    hidden: Size
    experts: Size
    top_k: int
    scores: Literal["softmax", "sigmoid"] = Field(description="of the router's logits, over all experts or each alone")
    selection_bias: bool = Field(
        default=False, description="experts are chosen by score + router_bias and weighted by the score alone"
    )
    groups: int = Field(default=1, description="the experts stand in so many equal groups")
    groups_kept: int = Field(
        default=1,
        description="only experts of so many best groups can be chosen, a group counting as much as its two best "
        "experts (DeepSeek-V3, arXiv 2412.19437)",
    )
    renormalise: bool = True
    renormalise_eps: float = Field(default=0.0, ge=0.0)
    routed_scale: float = 1.0
    router_float32: bool = Field(
        default=True,
        description="true: logits and weights in float32; false: logits in the activation dtype, to which the weights "
        "are cast too",
    )
    activation: Literal["silu", "gelu_tanh", "relu", "relu2"] = Field(
        default="silu", description='of each expert\'s gate; "relu2" is the square of the relu'
    )
    clamp: float = Field(
        default=0.0,
        ge=0.0,
        description="L > 0 cuts each expert's gate to at most L and its up to [-L, L] before the activation; 0: not",
    )
    shared_hidden: int = Field(
        default=0, ge=0, description="hidden width of the expert that every token goes through; 0: there is none"
    )
    shared_gate: Literal["none", "sigmoid"] = Field(
        default="none",
        description='"sigmoid": the shared expert\'s output is times sigmoid(shared_gate x), one number a token',
    )

    @model_validator(mode="after")
    def _consistent(self) -> "MoeAttributes":
        if not 1 <= self.groups_kept <= self.groups:
            raise ValueError(f"groups_kept {self.groups_kept} is outside 1..groups ({self.groups})")
        if self.experts % self.groups:
            raise ValueError(f"{self.experts} experts do not divide into {self.groups} groups")
        size = self.experts // self.groups
        if self.groups > 1 and size < 2:
            raise ValueError(f"a group's score needs two experts; {self.groups} groups of {self.experts} have one")
        if not 1 <= self.top_k <= size * self.groups_kept:
            raise ValueError(f"top_k {self.top_k} is outside 1..{size * self.groups_kept}, the experts left to choose")
        if self.renormalise_eps != 0.0 and not self.renormalise:
            raise ValueError("renormalise_eps has no effect without renormalise")
        if self.shared_gate != "none" and self.shared_hidden == 0:
            raise ValueError("shared_gate needs a shared expert (shared_hidden > 0)")
        return self

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {
            "scores": ("softmax", "sigmoid"),
            "renormalise": (True, False),
            "renormalise_eps": (0.0, 1e-20, 1e-15),
            "router_float32": (True, False),
            "activation": ("silu", "gelu_tanh", "relu", "relu2"),
            "clamp": (0.0, 7.0, 10.0),
        }


def weights(a: MoeAttributes) -> dict[str, Weight]:
    owned = {"router": Weight((a.experts, a.width))}
    if a.selection_bias:
        owned["router_bias"] = Weight((a.experts,), dtype="float32")
    owned["gate_up"] = Weight((a.experts, 2 * a.hidden, a.width))
    owned["down"] = Weight((a.experts, a.width, a.hidden))
    if a.shared_hidden:
        owned["shared_gate_up"] = Weight((2 * a.shared_hidden, a.width))
        owned["shared_down"] = Weight((a.width, a.shared_hidden))
    if a.shared_gate == "sigmoid":
        owned["shared_gate"] = Weight((1, a.width))
    return owned
