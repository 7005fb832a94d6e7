"""Speed of rotation alone, and of rotating queries and keys on the way into the paged cache."""

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
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.rotary.reference import rotary as reference
from day0.kernels.rotary.schema import RotaryAttributes
from day0.kernels.rotary.triton_rotary import SPACE, bucket, device_frequencies, turn, turn_and_remember

A = RotaryAttributes(head_dim=128, rotary_dim=128, theta=1e6)
Q_HEADS, KV_HEADS = 32, 8


def _batch(sequences: int, new: int, context: int) -> Batch:
    pages = -(-(context + new) // PAGE_TOKENS)
    order = torch.randperm(sequences * pages).view(sequences, pages).tolist()
    return Batch.pack(
        [[0] * new] * sequences,
        context_lens=[context] * sequences,
        slots=list(range(sequences)),
        pages=order,
        device="cuda",
    )


def _alone(tokens: int) -> Prepared:
    channels = Q_HEADS * A.head_dim
    moved = 2 * tokens * channels * 2
    sets = rotations(moved)
    xs = [torch.randn(tokens, channels, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    outs = [torch.empty_like(x) for x in xs]
    batch = _batch(1, tokens, 0)
    frequency = device_frequencies(A, xs[0].device)

    def run(config: dict[str, int], i: int) -> None:
        turn(A, xs[i], batch.positions, frequency, out=outs[i], launch=config)

    key = bucket(tokens * Q_HEADS, A.head_dim)
    chosen = dict(SPACE.tune(key, lambda config: tuning_seconds(partial(run, dict(config)), sets)))

    def compare() -> Deviation:
        run(chosen, 0)
        return deviation((outs[0], reference(A, xs[0], batch=batch), reference(A, xs[0].double(), batch=batch)))

    peers: dict[str, Run] = {"torch eager": lambda i: reference(A, xs[i], batch=batch)}
    return Prepared(sets, partial(run, chosen), Floor(moved, written=moved / 2), compare, peers)


def _into_the_cache(sequences: int, new: int, context: int) -> Prepared:
    tokens = sequences * new
    q_channels, kv_channels = Q_HEADS * A.head_dim, KV_HEADS * A.head_dim
    moved = 2 * tokens * (q_channels + 2 * kv_channels) * 2
    sets = rotations(moved)
    batch = _batch(sequences, new, context)
    rows = batch.page_table.numel() * PAGE_TOKENS
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    qs, ks, vs = ([draw(tokens, c) for _ in range(sets)] for c in (q_channels, kv_channels, kv_channels))
    outs = [torch.empty_like(q) for q in qs]
    k_pool, v_pool = draw(rows, KV_HEADS, A.head_dim), draw(rows, KV_HEADS, A.head_dim)
    frequency = device_frequencies(A, qs[0].device)
    owner = torch.arange(sequences, device="cuda").repeat_interleave(new)
    entries = batch.page_table[owner, batch.positions // PAGE_TOKENS] * PAGE_TOKENS + batch.positions % PAGE_TOKENS

    def ours(i: int) -> None:
        turn_and_remember(A, qs[i], ks[i], vs[i], batch, frequency, q_out=outs[i], k_pool=k_pool, v_pool=v_pool)

    def eager(i: int) -> Tensor:
        k_pool[entries] = reference(A, ks[i], batch=batch).view(tokens, KV_HEADS, A.head_dim)
        v_pool[entries] = vs[i].view(tokens, KV_HEADS, A.head_dim)
        return reference(A, qs[i], batch=batch)

    def compare() -> Deviation:
        ours(0)
        turned = (
            (got, reference(A, x, batch=batch), reference(A, x.double(), batch=batch))
            for got, x in ((outs[0], qs[0]), (k_pool[entries].flatten(1), ks[0]))
        )
        return deviation(*turned, (v_pool[entries].flatten(1), vs[0], vs[0].double()))

    return Prepared(sets, ours, Floor(moved, written=moved / 2), compare, {"torch eager": eager})


BENCHES = (
    Bench("rotary", "4096 x 32 heads of 128", partial(_alone, 4096)),
    Bench("rotary + cache write", "4096 tokens, 32 + 8 heads of 128", partial(_into_the_cache, 1, 4096, 0)),
    Bench("rotary + cache write", "64 sequences at 4096, 32 + 8 heads", partial(_into_the_cache, 64, 1, 4096)),
)
