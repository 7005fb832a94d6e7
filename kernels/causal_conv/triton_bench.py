"""The short convolution beside its floor and its peers: a long prompt, a pack of short ones, and decode."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

from day0.kernels.causal_conv import triton_conv
from day0.kernels.causal_conv.reference import causal_conv
from day0.kernels.causal_conv.schema import CausalConvAttributes
from day0.kernels.common.triton_bench import Bench, Deviation, Floor, Prepared, deviation, rotations, time_us
from day0.kernels.common.triton_tuning import Config
from day0.kernels.interface.batch import Batch

A = CausalConvAttributes(channels=24576, kernel_size=4, activation="silu")


class _Set:
    def __init__(self, lengths: list[int], context: int) -> None:
        s, n = len(lengths), sum(lengths)
        self.batch = Batch.pack(
            [[0] * length for length in lengths],
            context_lens=[context] * s,
            slots=torch.randperm(s).tolist(),
            pages=[[]] * s,
            phase="decode" if max(lengths) == 1 else "prefill",
            device="cuda",
        )
        self.x, self.weight, self.window = (
            torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
            for shape in ((n, A.channels), (A.channels, A.kernel_size), (s, A.channels, A.window))
        )
        self.out = torch.full_like(self.x, math.nan)

    def bytes(self) -> float:
        return float(self.x.nbytes + self.out.nbytes + self.weight.nbytes + 2 * self.window.nbytes)

    def run(self, config: Config | None = None) -> None:
        triton_conv.launch(
            A, self.x, weight=self.weight, batch=self.batch, window=self.window, out=self.out, config=config
        )

    def plain(self) -> Tensor:
        """PyTorch's own convolution over the rows as one sequence without a window: less than what ours does."""
        padded = self.x.T.unsqueeze(0)
        y = conv1d(padded, self.weight.unsqueeze(1), padding=A.window, groups=A.channels)
        return silu(y[0, :, : self.x.shape[0]].T)

    def reference(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Output and new window of the plain reference on the CPU."""
        x, weight, window = (t.cpu().to(dtype, copy=True) for t in (self.x, self.weight, self.window))
        moved: dict[str, Any] = {name: x.cpu() for name, x in vars(self.batch).items() if isinstance(x, Tensor)}
        out = causal_conv(A, x, weight=weight, batch=replace(self.batch, **moved), window=window)
        assert isinstance(out, Tensor)
        return out, window

    def compare(self) -> Deviation:
        plain, exact = self.reference(self.x.dtype), self.reference(torch.float64)
        self.run()
        return deviation(*zip((self.out, self.window), plain, exact, strict=True))


def _prepare(lengths: list[int], context: int) -> Prepared:
    scratch = _Set(lengths, context)

    def measure(config: Config) -> float:
        try:
            return time_us(lambda i: scratch.run(config), 1)[0]
        except RuntimeError:  # more registers or shared memory than the device has
            return math.inf

    triton_conv.SPACE.tune(triton_conv.bucket(A, sum(lengths)), measure)
    inputs = [_Set(lengths, context) for _ in range(rotations(scratch.bytes()))]
    compiled = torch.compile(_Set.plain, dynamic=False)
    return Prepared(
        sets=len(inputs),
        ours=lambda i: inputs[i].run(),
        floor=Floor(bytes=inputs[0].bytes(), written=inputs[0].out.nbytes + inputs[0].window.nbytes),
        peers={
            "torch conv1d": lambda i: inputs[i].plain(),
            "torch.compile": lambda i: compiled(inputs[i]),
        },
        compare=inputs[0].compare,
    )


BENCHES: tuple[Bench, ...] = (
    Bench("causal_conv prefill", "T4096 C24576", lambda: _prepare([4096], 0)),
    Bench("causal_conv prefill", "32 x 128 C24576", lambda: _prepare([128] * 32, 64)),
    Bench("causal_conv decode", "B64 C24576", lambda: _prepare([1] * 64, 64)),
)
