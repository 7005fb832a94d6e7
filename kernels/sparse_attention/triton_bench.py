"""Benches of the sparse read of 2048 listed positions, lists and queries given."""

from functools import partial

import torch

from day0.kernels.common.triton_attention_bench import Shape, prepare
from day0.kernels.common.triton_bench import Bench


def _latent(
    sequences: int,
    quantised: torch.dtype | None = None,
    *,
    context: int = 32768,
    heads: int = 64,
    rope_dim: int = 64,
    tokens: int = 1,
) -> Shape:
    return Shape(
        sequences, context, heads, 1, 512, rope_dim, values=False, width=2048, quantised=quantised, tokens=tokens
    )


def _bench(name: str, shape: Shape, goal: str = "") -> Bench:
    return Bench("sparse_attention", name, partial(prepare, shape), goal)


BENCHES = (
    _bench("latent B32 K2048 H64", _latent(32), "1/5 of torch, 45 % of floor"),
    _bench("latent B1 K2048 H64", _latent(1)),
    _bench("latent B8 K2048 H64", _latent(8)),
    _bench("latent B64 K2048 H64", _latent(64)),
    _bench("latent B32 K2048 H16", _latent(32, heads=16)),
    _bench("latent B32 K2048 H64 without rope", _latent(32, rope_dim=0)),
    _bench("gqa B32 K2048 H64/8 D128", Shape(32, 32768, 64, 8, 128, width=2048)),
    _bench("latent B32 K2048 H64 float8", _latent(32, torch.float8_e4m3fn), "1.5 of bf16 where bytes dominate"),
    _bench("latent prefill B1 T4096 K2048 H64", _latent(1, tokens=4096, context=4096)),
    _bench("latent verify B8 T4 K2048 H64", _latent(8, tokens=4)),
)
