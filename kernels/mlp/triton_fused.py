"""Feed-forward network with its activation in one Triton pass; both products are PyTorch's, which reach their floor."""

from torch import Tensor
from torch.nn.functional import linear

from day0.kernels.mlp.schema import MlpAttributes
from day0.kernels.mlp.triton_activation import activate


def mlp(
    a: MlpAttributes,
    x: Tensor,  # [N, width]
    *,
    down: Tensor,  # [width, hidden]
    gate_up: Tensor | None = None,  # [2 * hidden, width], gate first
    up: Tensor | None = None,  # [hidden, width], without a gate
) -> Tensor:  # [N, width]
    """As the reference: y = down (act(gate) * up), clamped first if a.clamp > 0; y = down act(up) without a gate."""
    first = gate_up if a.gated else up
    assert first is not None, "gated needs gate_up, ungated needs up"
    inner = linear(x, first)
    flat = inner.reshape(-1, inner.shape[-1])
    middle = inner.new_empty(flat.shape[0], down.shape[1])
    activate(flat, form=a.activation, gated=a.gated, clamp=a.clamp, out=middle)
    return linear(middle, down).view(*x.shape[:-1], -1)
