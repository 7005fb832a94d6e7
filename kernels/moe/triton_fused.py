"""The implementation "triton" of `moe`: routing and experts in fused launches, the shared expert through torch."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from day0.kernels.common.feed_forward import feed_forward
from day0.kernels.moe.schema import MoeAttributes
from day0.kernels.moe.triton_experts import block_of, combine, down, up
from day0.kernels.moe.triton_route import Routing, route


def moe(
    a: MoeAttributes,
    x: Tensor,  # [N, width]
    *,
    router: Tensor,  # [experts, width]
    gate_up: Tensor,  # [experts, 2 * hidden, width]
    down: Tensor,  # [experts, width, hidden]
    router_bias: Tensor | None = None,  # [experts] float32
    shared_gate_up: Tensor | None = None,  # [2 * shared_hidden, width]
    shared_down: Tensor | None = None,  # [width, shared_hidden]
    shared_gate: Tensor | None = None,  # [1, width]
) -> Tensor:  # [N, width]
    """As the reference; a chosen expert's weights are read once for each block of its tokens."""
    routed = routed_experts(a, x, router, gate_up, down, router_bias)
    if shared_gate_up is None or shared_down is None:
        return routed
    shared = feed_forward(x, shared_gate_up, shared_down, form=a.activation, clamp=a.clamp, gated=True)
    return routed + (shared if shared_gate is None else torch.sigmoid(linear(x, shared_gate)) * shared)


def routed_experts(
    a: MoeAttributes, x: Tensor, router: Tensor, gate_up: Tensor, down_weight: Tensor, router_bias: Tensor | None
) -> Tensor:
    """The weighted sum over the chosen experts, [N, width]."""
    n = x.shape[0]
    routing = Routing.allocate(a, n, block_of(a, n), x.device)
    h, rows, y = x.new_empty(n * a.top_k, a.hidden), x.new_empty(n * a.top_k, a.width), torch.empty_like(x)
    route(a, x, router, router_bias, routing)
    up(a, x, gate_up, routing, h)
    down(a, h, down_weight, routing, rows)
    combine(a, rows, routing, y)
    return y
