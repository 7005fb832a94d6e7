"""Speed of the fused experts: router, both products and the sum, at the widths of a 288-expert model."""

from functools import partial

import torch
from torch import Tensor

from day0.kernels.common.triton_bench import Bench, Deviation, Floor, Prepared, deviation, tuning_seconds
from day0.kernels.common.triton_tuning import Config
from day0.kernels.moe.reference import moe as reference
from day0.kernels.moe.schema import MoeAttributes
from day0.kernels.moe.triton_experts import DOWN, UP, block_of, bucket, down, up
from day0.kernels.moe.triton_fused import routed_experts
from day0.kernels.moe.triton_route import Routing, route

WIDE = MoeAttributes(
    width=4096, hidden=2048, experts=288, top_k=8, scores="sigmoid", selection_bias=True, routed_scale=2.5
)


def _prepare(a: MoeAttributes, tokens: int) -> Prepared:
    """Weights are 14.5 GB, far more than any cache; every input set routes differently."""
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    gate_up = draw(a.experts, 2 * a.hidden, a.width).mul_(a.width**-0.5)
    down_weight = draw(a.experts, a.width, a.hidden).mul_(a.hidden**-0.5)
    router = draw(a.experts, a.width).mul_(a.width**-0.5)
    bias = torch.zeros(a.experts, device="cuda")
    sets = 8
    xs = [draw(tokens, a.width) for _ in range(sets)]
    outputs = [torch.empty_like(x) for x in xs]
    routings = [Routing.allocate(a, tokens, block_of(a, tokens), "cuda") for _ in range(sets)]
    h = torch.empty(tokens * a.top_k, a.hidden, device="cuda", dtype=torch.bfloat16)
    rows = torch.empty(tokens * a.top_k, a.width, device="cuda", dtype=torch.bfloat16)
    for x, routing in zip(xs, routings, strict=True):
        route(a, x, router, bias, routing)
    hit = sum(len(routing.experts.unique()) for routing in routings) / sets

    def try_up(config: Config) -> float:
        return tuning_seconds(lambda i: up(a, xs[i], gate_up, routings[i], h, config), sets)

    def try_down(config: Config) -> float:
        return tuning_seconds(lambda i: down(a, h, down_weight, routings[i], rows, config), sets)

    key = bucket(a, tokens, block_of(a, tokens))
    UP.tune(key, try_up)
    DOWN.tune(key, try_down)

    def ours(i: int) -> None:
        outputs[i] = routed_experts(a, xs[i], router, gate_up, down_weight, bias)

    def eager(i: int) -> Tensor:
        return reference(a, xs[i], router=router, gate_up=gate_up, down=down_weight, router_bias=bias)

    def dense_gather(i: int) -> Tensor:
        """What eager torch can do without leaving the device: gather the chosen experts' weights, then bmm."""
        ids = routings[i].experts.flatten().long()
        inner = torch.bmm(gate_up[ids], xs[i].repeat_interleave(a.top_k, 0).unsqueeze(-1)).squeeze(-1)
        gate, value = inner.chunk(2, dim=-1)
        out = torch.bmm(down_weight[ids], (torch.nn.functional.silu(gate) * value).unsqueeze(-1)).squeeze(-1)
        return (out.view(tokens, a.top_k, -1) * routings[i].weights.unsqueeze(-1)).sum(1)

    def plain(dtype: torch.dtype) -> Tensor:
        """The first set's first tokens in plain torch, by our choice of experts: another one is no rounding."""
        result = torch.zeros(min(tokens, 4), a.width, device="cuda", dtype=dtype)
        for token in range(len(result)):
            for choice in range(a.top_k):
                e = int(routings[0].experts[token, choice])
                inner = gate_up[e].to(dtype) @ xs[0][token].to(dtype)
                gate, value = inner.chunk(2)
                out = down_weight[e].to(dtype) @ (torch.nn.functional.silu(gate) * value)
                result[token] += float(routings[0].weights[token, choice]) * out
        return result

    def compare() -> Deviation:
        ours(0)
        return deviation((outputs[0][:4], plain(torch.bfloat16), plain(torch.float64)))

    expert_bytes = 3 * a.hidden * a.width * 2
    moved = hit * expert_bytes + router.nbytes + 2 * tokens * a.width * 2
    flops = 2.0 * tokens * (a.top_k * 3 * a.hidden * a.width + a.experts * a.width)
    peers = {"torch eager": eager} | ({"torch gather + bmm": dense_gather} if tokens <= 8 else {})
    return Prepared(sets, ours, Floor(moved, flops), compare, peers)


BENCHES = tuple(
    Bench("moe", f"288 experts, top-8, 4096 x 2048, {tokens} tokens", partial(_prepare, WIDE, tokens), goal)
    for tokens, goal in ((1, ">= 65 % of floor"), (8, ">= 65 % of floor"), (64, ">= 65 % of floor"), (4096, ""))
)
