"""Plain PyTorch mixture of experts."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from day0.kernels.common.feed_forward import feed_forward
from day0.kernels.common.numerics import upcast
from day0.kernels.interface.choice import Choice
from day0.kernels.moe.schema import MoeAttributes


def moe(
    a: MoeAttributes,
    x: Tensor,  # [N, width]
    *,
    router: Tensor,  # [experts, width]
    gate_up: Tensor,  # [experts, 2 * hidden, width], gate first
    down: Tensor,  # [experts, width, hidden]
    router_bias: Tensor | None = None,  # [experts] float32
    shared_gate_up: Tensor | None = None,  # [2 * shared_hidden, width]
    shared_down: Tensor | None = None,  # [width, shared_hidden]
    shared_gate: Tensor | None = None,  # [1, width]
) -> Tensor:  # [N, width]
    """y = sum over the chosen experts e of weight_e * expert_e(x), plus the shared expert, gated or not.

    The sum runs in float32 in expert order and goes back to the activation dtype before the shared expert is added.
    """
    ids, weights, _ = route(a, x, router, router_bias)
    total = torch.zeros_like(upcast(x))
    for expert in ids.unique().tolist():
        token, choice = torch.where(ids == expert)
        out = feed_forward(x[token], gate_up[expert], down[expert], form=a.activation, clamp=a.clamp, gated=True)
        total.index_add_(0, token, upcast(out * weights[token, choice, None]))
    y = total.to(x.dtype)
    if shared_gate_up is None or shared_down is None:
        return y
    shared = feed_forward(x, shared_gate_up, shared_down, form=a.activation, clamp=a.clamp, gated=True)
    return y + (shared if shared_gate is None else torch.sigmoid(linear(x, shared_gate)) * shared)


def choices(
    a: MoeAttributes,
    x: Tensor,  # [N, width]
    *,
    router: Tensor,  # [experts, width]
    router_bias: Tensor | None = None,  # [experts] float32
    **_experts: Tensor,
) -> dict[str, Choice]:
    """The choice of experts, and of groups where there are some."""
    _, choice = _scores(a, x, router, router_bias)
    experts = Choice(route(a, x, router, router_bias)[2], a.top_k)
    return {"experts": experts} | ({"groups": Choice(_of_groups(a, choice), a.groups_kept)} if a.groups > 1 else {})


def route(
    a: MoeAttributes,
    x: Tensor,  # [N, width]
    router: Tensor,  # [experts, width]
    router_bias: Tensor | None = None,  # [experts] float32
) -> tuple[Tensor, Tensor, Tensor]:  # [N, top_k] int64, [N, top_k], [N, experts]
    """The chosen experts of each token (best first), their weights, and the scores that the choice was made by.

    The last holds score + bias, -inf for the experts of groups that were not kept: the k-th and the (k+1)-th best of a
    row tell how close the choice was. Formulas: arXiv 2412.19437 section 2.1.2 (sigmoid scores, bias, groups);
    transformers Qwen3NextTopKRouter (softmax scores).
    """
    scores, choice = _scores(a, x, router, router_bias)
    if a.groups > 1:
        grouped = choice.unflatten(-1, (a.groups, -1))
        kept = _best(_of_groups(a, choice), a.groups_kept)
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, kept, False)
        choice = grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(-2)
    ids = _best(choice, a.top_k)
    weights = scores.gather(-1, ids)
    if a.renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + a.renormalise_eps)
    weights = weights * a.routed_scale
    return ids, weights if a.router_float32 else weights.to(x.dtype), choice


def _scores(a: MoeAttributes, x: Tensor, router: Tensor, router_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """[N, experts] each: the scores that weight, and those that choose."""
    logits = linear(upcast(x), upcast(router)) if a.router_float32 else upcast(linear(x, router))
    scores = torch.softmax(logits, dim=-1) if a.scores == "softmax" else torch.sigmoid(logits)
    return scores, scores if router_bias is None else scores + router_bias


def _of_groups(a: MoeAttributes, choice: Tensor) -> Tensor:
    """A group's score, of its two best experts: [N, experts] -> [N, groups]."""
    best: Tensor = choice.unflatten(-1, (a.groups, -1)).topk(2, dim=-1).values
    return best.sum(-1)


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest along the last axis, best first; equal scores in index order."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
