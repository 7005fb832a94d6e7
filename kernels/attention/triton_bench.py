"""Benches of the dense paged read."""

from functools import partial

import torch

from day0.kernels.common.triton_attention_bench import Shape, prepare
from day0.kernels.common.triton_bench import Bench


def _gqa(sequences: int, context: int, quantised: torch.dtype | None = None) -> Shape:
    return Shape(sequences, context, 64, 8, 128, quantised=quantised)


def _bench(name: str, shape: Shape, goal: str = "") -> Bench:
    return Bench("attention", name, partial(prepare, shape), goal)


BENCHES = (
    _bench("gqa B32 S32768 H64/8 D128", _gqa(32, 32768), "75 % of floor"),
    _bench("gqa B1 S32768 H64/8 D128", _gqa(1, 32768)),
    _bench("gqa B256 S2048 H64/8 D128", _gqa(256, 2048)),
    _bench("mla B32 S8192 H64", Shape(32, 8192, 64, 1, 512, 64, values=False)),
    _bench("gqa B32 S32768 H64/8 D128 float8", _gqa(32, 32768, torch.float8_e4m3fn), "1.5 of bf16"),
    _bench("gqa B32 S32768 H64/8 D128 int8", _gqa(32, 32768, torch.int8), "1.5 of bf16"),
    _bench("gqa prefill B1 T4096 H64/8 D128", Shape(1, 4096, 64, 8, 128, tokens=4096), "as SDPA"),
    _bench("gqa verify B32 T4 S32768 H64/8 D128", Shape(32, 32768, 64, 8, 128, tokens=4)),
    _bench("mla verify B32 T4 S8192 H64", Shape(32, 8192, 64, 1, 512, 64, values=False, tokens=4)),
)
