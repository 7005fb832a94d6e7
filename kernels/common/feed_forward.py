"""The two-layer network that dense layers, routed experts and shared experts all are."""

from torch import Tensor
from torch.nn.functional import linear

from day0.kernels.common.numerics import activation


def feed_forward(
    x: Tensor,  # [N, width]
    up: Tensor,  # [2 * hidden, width], gate rows first; [hidden, width] without a gate
    down: Tensor,  # [width, hidden]
    *,
    form: str,
    clamp: float,
    gated: bool,
) -> Tensor:  # [N, width], the dtype of x
    """down (act(gate) * up) with gate = W_g x and up = W_u x (SwiGLU, arXiv 2002.05202); down act(up) without a gate.

    `form` names the activation. `clamp` L > 0 first cuts gate to at most L and up to [-L, L]
    (transformers Glm5NextTextMLP).
    """
    inner = linear(x, up)
    if not gated:
        return linear(activation(form, inner), down)
    gate, value = inner.chunk(2, dim=-1)
    if clamp > 0.0:
        gate, value = gate.clamp(max=clamp), value.clamp(min=-clamp, max=clamp)
    return linear(activation(form, gate) * value, down)
