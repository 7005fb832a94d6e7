"""Speed of the clamped SwiGLU between a feed-forward network's products."""

from functools import partial

import torch
from torch import Tensor

from day0.kernels.common.triton_bench import (
    Bench,
    Deviation,
    Floor,
    Prepared,
    Run,
    deviation,
    rotations,
    tuning_seconds,
)
from day0.kernels.mlp.triton_activation import SPACE, activate, bucket

CLAMP = 7.0


def _step(inner: Tensor) -> Tensor:
    gate, value = inner.chunk(2, dim=-1)
    gate, value = gate.clamp(max=CLAMP), value.clamp(min=-CLAMP, max=CLAMP)
    return torch.nn.functional.silu(gate) * value


def _prepare(tokens: int, hidden: int) -> Prepared:
    moved = 3 * tokens * hidden * 2
    sets = rotations(moved)
    inners = [4.0 * torch.randn(tokens, 2 * hidden, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    outs = [torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]

    def run(config: dict[str, int], i: int) -> None:
        activate(inners[i], form="silu", gated=True, clamp=CLAMP, out=outs[i], launch=config)

    key = bucket(tokens, hidden)
    chosen = dict(SPACE.tune(key, lambda config: tuning_seconds(partial(run, dict(config)), sets)))
    torch._dynamo.reset()
    compiled = torch.compile(_step, dynamic=False)

    def compare() -> Deviation:
        run(chosen, 0)
        return deviation((outs[0], _step(inners[0]), _step(inners[0].double())))

    peers: dict[str, Run] = {
        "torch eager": lambda i: _step(inners[i]),
        "torch.compile": lambda i: compiled(inners[i]),
    }
    return Prepared(sets, partial(run, chosen), Floor(moved, written=outs[0].nbytes), compare, peers)


BENCHES = tuple(Bench("clamped SwiGLU", f"{n} x 8192", partial(_prepare, n, 8192)) for n in (64, 4096))
