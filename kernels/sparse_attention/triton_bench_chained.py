"""Benches of choice and read as one call beside the two launched apart, on the same inputs and configurations."""

from functools import partial

import torch
from torch import Tensor

from day0.kernels.common.conformance import relative_l2
from day0.kernels.common.triton_attention_bench import DTYPE, Inputs, Shape
from day0.kernels.common.triton_attention_launch import problem, read
from day0.kernels.common.triton_bench import Bench, Deviation, Floor, Prepared
from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.index_select.triton_choose import choose, plan, workspace
from day0.kernels.sparse_attention.triton_chained import choose_and_read, place_columns

_WIDTH, _HEADS, _DIM = 2048, 64, 128


def _prepare(sequences: int, context: int) -> Prepared:
    """Configurations are those that the benches of the two kinds have measured, or the first."""
    x = Inputs(Shape(sequences, context, 64, 1, 512, 64, values=False, width=_WIDTH))
    a = IndexSelectAttributes(
        heads=_HEADS, dim=_DIM, budget=_WIDTH, scale=_DIM**-0.5, score="relu_weighted", weight_scale=0.125
    )

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=DTYPE, device="cuda")

    q, weights = draw(x.sets, sequences, _HEADS * _DIM), draw(x.sets, sequences, _HEADS)
    keys = draw(x.keys.shape[0], _DIM)
    steps = plan(a, x.batches[0], sequences, DTYPE, keys.device)
    places = torch.empty(sequences, place_columns(a), dtype=torch.int32, device="cuda")
    lists = torch.empty(sequences, _WIDTH, dtype=torch.int64, device="cuda")
    index_scratch = workspace(steps, keys.device)
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    shape = problem(x.q[0], x.keys, None, batch=x.batches[0], indices=lists, rope_keys=x.rope_keys)
    config = shape.config()
    scratch = torch.empty(shape.scratch(shape.splits(config)), device="cuda")

    def one_call(i: int) -> None:
        choose_and_read(
            a,
            steps,
            q[i],
            keys,
            weights[i],
            x.q[i],
            x.keys,
            None,
            x.out[i],
            places=places,
            flag=flag,
            index_scratch=index_scratch,
            scratch=scratch,
            scale=x.scale,
            batch=x.batches[i],
            q_rope=x.q_rope[i],
            rope_keys=x.rope_keys,
            config=config,
        )

    def apart(i: int) -> None:
        choose(a, steps, q[i], keys, weights[i], lists, flag, index_scratch, batch=x.batches[i])
        read(
            x.q[i],
            x.keys,
            None,
            x.out[i],
            scale=x.scale,
            batch=x.batches[i],
            indices=lists,
            q_rope=x.q_rope[i],
            rope_keys=x.rope_keys,
            scratch=scratch,
            config=config,
        )

    def compare() -> Deviation:
        """With the two apart, to the bit: the same sums in the same order."""
        apart(0)
        want = x.out[0].clone()
        one_call(0)
        return Deviation(relative_l2(x.out[0], want), 0.0)

    floor = x.shape.floor()
    index_bytes = sequences * (context * _DIM + _HEADS * _DIM + _HEADS) * 2
    # Lists need not be written or read.
    bytes_moved = floor.bytes - sequences * _WIDTH * 8 + index_bytes
    flops = floor.flops + 2.0 * sequences * context * _HEADS * _DIM
    return Prepared(x.sets, one_call, Floor(bytes_moved, flops, floor.written), compare, {"apart": apart})


def _bench(name: str, sequences: int, context: int) -> Bench:
    return Bench("sparse_attention", name, partial(_prepare, sequences, context), "less than apart")


BENCHES = (
    _bench("index and latent read chained, B1 S65536", 1, 65536),
    _bench("index and latent read chained, B32 S32768", 32, 32768),
)
