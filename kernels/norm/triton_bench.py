"""Speed of normalisation: alone, and with the residual sum in front of it."""

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
from day0.kernels.norm.reference import norm as reference
from day0.kernels.norm.schema import NormAttributes
from day0.kernels.norm.triton_norm import SPACE, bucket, normalise

PLAIN = NormAttributes(dim=4096, eps=1e-6)
GATED = NormAttributes(dim=128, eps=1e-6, gate="silu", cast="after_weight")


def _prepare(a: NormAttributes, tokens: int, channels: int, adds: bool) -> Prepared:
    passes = 4 if adds else 3 if a.gate != "none" else 2
    sets = rotations(passes * tokens * channels * 2)
    xs, others, outs, totals = (
        [torch.randn(tokens, channels, device="cuda", dtype=torch.bfloat16) for _ in range(sets)] for _ in range(4)
    )
    weight = torch.randn(a.groups * a.dim, device="cuda", dtype=torch.bfloat16)

    def run(config: dict[str, int], i: int) -> None:
        gate = others[i] if a.gate != "none" else None
        summed = {"residual": others[i], "total": totals[i]} if adds else {}
        normalise(a, xs[i], gate, weight=weight, bias=None, out=outs[i], launch=config, **summed)

    key = bucket(tokens * channels // a.dim, a.dim)
    chosen = dict(SPACE.tune(key, lambda config: tuning_seconds(partial(run, dict(config)), sets)))

    def step(x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        total = x + other if adds else x
        return total, reference(a, total, other if a.gate != "none" else None, weight=weight)

    torch._dynamo.reset()
    compiled = torch.compile(step, dynamic=False)

    def compare() -> Deviation:
        run(chosen, 0)
        total, plain = step(xs[0], others[0])
        # The norm is of the rounded sum, as in the reference: what rounding the sum costs is the sum's own error.
        gate = others[0].double() if a.gate != "none" else None
        normed = (outs[0], plain, reference(a, total.double(), gate, weight=weight.double()))
        if not adds:
            return deviation(normed)
        return deviation(normed, (totals[0], total, xs[0].double() + others[0].double()))

    peers: dict[str, Run] = {
        "torch eager": lambda i: step(xs[i], others[i]),
        "torch.compile": lambda i: compiled(xs[i], others[i]),
    }
    if a.gate == "none" and not adds:
        peers["torch rms_norm"] = lambda i: torch.nn.functional.rms_norm(xs[i], (a.dim,), weight, a.eps)
    written = (2 if adds else 1) * outs[0].nbytes
    floor = Floor(passes * tokens * channels * 2 + weight.nbytes, written=written)
    return Prepared(sets, partial(run, chosen), floor, compare, peers)


BENCHES = (
    Bench("norm", "4096 x 4096", partial(_prepare, PLAIN, 4096, 4096, False)),
    Bench("norm", "64 x 4096", partial(_prepare, PLAIN, 64, 4096, False)),
    Bench("residual + norm", "4096 x 4096", partial(_prepare, PLAIN, 4096, 4096, True)),
    Bench("gated norm", "4096 x 32 heads of 128", partial(_prepare, GATED, 4096, 4096, False)),
)
