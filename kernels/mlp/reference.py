"""Plain PyTorch feed-forward network."""

from torch import Tensor

from day0.kernels.common.feed_forward import feed_forward
from day0.kernels.mlp.schema import MlpAttributes


def mlp(
    a: MlpAttributes,
    x: Tensor,  # [N, width]
    *,
    down: Tensor,  # [width, hidden]
    gate_up: Tensor | None = None,  # [2 * hidden, width], gate first
    up: Tensor | None = None,  # [hidden, width], without a gate
) -> Tensor:  # [N, width]
    """y = down (act(gate) * up), gate and up clamped first if a.clamp > 0; y = down act(up) without a gate."""
    first = gate_up if a.gated else up
    assert first is not None, "gated needs gate_up, ungated needs up"
    return feed_forward(x, first, down, form=a.activation, clamp=a.clamp, gated=a.gated)
