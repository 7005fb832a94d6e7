"""Speed of the packed product beside cuBLAS, of the few tokens that the implementation takes it for and of more."""

from functools import partial

import torch

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
from day0.kernels.common.triton_tuning import Config
from day0.kernels.linear.contract import FEW_ROWS
from day0.kernels.linear.triton_product import MATRIX, VECTOR, bucket, product, workspace


def _prepare(tokens: int, in_features: int, out_features: int) -> Prepared:
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    weight_bytes = 2 * in_features * out_features
    sets = rotations(weight_bytes)
    xs = [draw(tokens, in_features) for _ in range(sets)]
    weights = [draw(out_features, in_features).mul_(in_features**-0.5) for _ in range(sets)]
    outs = [torch.empty(tokens, out_features, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    space = VECTOR if tokens == 1 else MATRIX
    most = max(workspace(tokens, out_features, config) for config in space.configs)
    scratch = torch.empty(most, device="cuda")

    def run(config: Config, i: int) -> None:
        product(xs[i], weights[i], outs[i], scratch=scratch, config=config)

    shape = bucket(tokens, in_features, out_features)
    chosen = space.tune(shape, lambda config: tuning_seconds(partial(run, config), sets))

    def cublas(i: int) -> None:
        torch.mm(xs[i], weights[i].t(), out=outs[i])

    def compare() -> Deviation:
        run(chosen, 0)
        return deviation((outs[0], xs[0] @ weights[0].T, xs[0].double() @ weights[0].double().T))

    moved = weight_bytes + 2 * tokens * (in_features + out_features)
    flops = 2.0 * tokens * in_features * out_features
    peers: dict[str, Run] = {"cuBLAS": cublas}
    floor = Floor(moved, flops, written=2 * tokens * out_features)
    return Prepared(sets, partial(run, chosen), floor, compare, peers)


BENCHES = tuple(
    Bench(
        "linear",
        f"4096 -> {out_features}, {tokens} tokens",
        partial(_prepare, tokens, 4096, out_features),
        "< cuBLAS" if tokens <= FEW_ROWS else "",
    )
    for out_features in (24576, 12288, 4096)
    for tokens in (1, 8, 16, 32, 64)
)
