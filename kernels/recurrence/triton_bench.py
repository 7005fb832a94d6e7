"""Decode beside its floor and its peers: convolution, gates, norms and state in one launch."""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from day0.kernels.common.triton_bench import Bench, Deviation, Floor, Prepared, Run, deviation, rotations, time_us
from day0.kernels.common.triton_tuning import Config
from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence import triton_decode
from day0.kernels.recurrence.inputs import step_inputs
from day0.kernels.recurrence.schema import RecurrenceAttributes
from day0.kernels.recurrence.triton_pieces import OutputNorm, ShortConv

TAPS = 4
EPS = 1e-5
# Sequences that the comparison with float64 takes.
COMPARED = 4

_DELTA: dict[str, Any] = dict(key_dim=128, value_dim=128, delta_rule=True, beta="sigmoid", qk_norm="l2")
KDA = RecurrenceAttributes(
    key_heads=64, value_heads=64, decay="per_channel", decay_form="bounded_sigmoid", lower_bound=-5.0, **_DELTA
)
GDN = RecurrenceAttributes(key_heads=16, value_heads=32, decay="per_head", decay_form="softplus", **_DELTA)


@dataclass(frozen=True)
class Step:
    """One decode step's tensors: projections before the convolution, and the memory of its sequences."""

    a: RecurrenceAttributes
    qkv: Tensor  # [B, C]
    decay: Tensor
    beta: Tensor
    gate: Tensor
    weights: Mapping[str, Tensor]  # A_log, dt_bias: float32
    conv_weight: Tensor  # [C, TAPS]
    norm_weight: Tensor  # [Dv]
    window: Tensor  # [B, C, TAPS - 1]
    state: Tensor  # [B, Hv, Dk, Dv] float32
    batch: Batch
    scratch: triton_decode.Workspace
    out: Tensor

    @staticmethod
    def random(a: RecurrenceAttributes, sequences: int, device: str = "cuda") -> "Step":
        channels = 2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim
        values = a.value_heads * a.value_dim

        def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.randn(*shape, device=device).to(dtype)

        batch = Batch.pack(
            [[0]] * sequences,
            context_lens=[100] * sequences,
            slots=torch.randperm(sequences).tolist(),
            pages=[[]] * sequences,
            phase="decode",
            device=device,
        )
        return Step(
            a=a,
            qkv=normal(sequences, channels),
            decay=normal(sequences, a.decay_width),
            beta=normal(sequences, a.value_heads),
            gate=normal(sequences, values),
            weights={
                "A_log": normal(a.value_heads, dtype=torch.float32) * 0.5,
                "dt_bias": normal(a.decay_width, dtype=torch.float32) * 0.5,
            },
            conv_weight=normal(channels, TAPS) * 0.5,
            norm_weight=normal(a.value_dim),
            window=normal(sequences, channels, TAPS - 1),
            state=normal(sequences, a.value_heads, a.key_dim, a.value_dim, dtype=torch.float32),
            batch=batch,
            scratch=triton_decode.workspace(a, sequences, device),
            out=torch.full((sequences, values), math.nan, device=device, dtype=torch.bfloat16),
        )

    def bytes(self) -> float:
        """State and window read and written, each other tensor once."""
        once = (self.qkv, self.decay, self.beta, self.gate, self.conv_weight, self.norm_weight, self.out)
        return sum(x.nbytes for x in (*once, *self.weights.values())) + 2.0 * (self.state.nbytes + self.window.nbytes)

    def ports(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys = self.a.key_heads * self.a.key_dim
        q, k, v = qkv.split([keys, keys, self.a.value_heads * self.a.value_dim], dim=1)
        return q, k, v

    def run(self, config: Config | None = None) -> None:
        keys = self.a.key_heads * self.a.key_dim
        triton_decode.launch(
            self.a,
            *self.ports(self.qkv),
            self.decay,
            self.beta,
            A_log=self.weights["A_log"],
            dt_bias=self.weights["dt_bias"],
            batch=self.batch,
            state=self.state,
            out=self.out,
            conv=ShortConv(self.conv_weight, self.window, (0, keys, 2 * keys)),
            norm=OutputNorm(EPS, self.norm_weight, gate=self.gate, activation="sigmoid"),
            scratch=self.scratch,
            config=config,
        )

    def plain(self, rows: slice = slice(None), dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Output, new state and new window of some sequences in plain PyTorch; `dtype` None: as tensors are."""

        def cast(x: Tensor) -> Tensor:
            return x if dtype is None else x.to(dtype)

        slots = self.batch.slots[rows]
        inputs = torch.cat((cast(self.window[slots]), cast(self.qkv[rows]).unsqueeze(-1)), dim=-1)
        qkv = silu((inputs * cast(self.conv_weight)).sum(-1))
        weights = {name: cast(w) for name, w in self.weights.items()}
        x = step_inputs(self.a, *self.ports(qkv), cast(self.decay[rows]), cast(self.beta[rows]), D=None, **weights)
        s = cast(self.state[slots]) * x.log_decay.exp().unsqueeze(-1)
        u = x.beta * (x.v - (x.k.unsqueeze(-1) * s).sum(2))
        s = s + x.k.unsqueeze(-1) * u.unsqueeze(2)
        o = (x.q.unsqueeze(-1) * s).sum(2)
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS) * cast(self.norm_weight)
        return o.flatten(1) * torch.sigmoid(cast(self.gate[rows])), s, inputs[..., 1:]

    def compare(self) -> Deviation:
        """The worst of output, state and window of the first sequences."""
        some = slice(0, COMPARED)
        plain, exact = self.plain(some), self.plain(some, torch.float64)
        self.run()
        slots = self.batch.slots[some]
        return deviation(*zip((self.out[some], self.state[slots], self.window[slots]), plain, exact, strict=True))


def _tune(a: RecurrenceAttributes, sequences: int, sets: int) -> None:
    """Choose the configuration for this many sequences, on tensors of its own: as many as L2 does not hold."""
    steps = [Step.random(a, sequences) for _ in range(sets)]

    def measure(config: Config) -> float:
        try:
            return time_us(lambda i: steps[i].run(config), sets)[0]
        except RuntimeError:  # more registers or shared memory than the device has
            return math.inf

    triton_decode.SPACE.tune(triton_decode.bucket(a, sequences, whole=False), measure)


def _fla(step: Step) -> Callable[[], object] | None:
    """fla-core's recurrence on inputs that are convolved already, without output norm; None where not installed."""
    try:
        kda = importlib.import_module("fla.ops.kda.fused_recurrent").fused_recurrent_kda_fwd
        gdn = importlib.import_module("fla.ops.gated_delta_rule").fused_recurrent_gated_delta_rule
    except ImportError:
        return None
    a, b = step.a, step.qkv.shape[0]
    q, k, v = (
        x.reshape(b, 1, heads, -1).contiguous()
        for x, heads in zip(step.ports(step.qkv), (a.key_heads, a.key_heads, a.value_heads), strict=True)
    )
    decay, beta = step.decay.reshape(b, 1, a.value_heads, -1), step.beta.unsqueeze(1)
    shared = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True)
    if a.decay == "per_channel":
        out = torch.empty_like(v)
        return lambda: kda(
            q, k, v, decay, beta, **step.weights, initial_state=step.state, lower_bound=a.lower_bound, out=out, **shared
        )
    return lambda: gdn(
        q, k, v, decay.squeeze(-1), beta=beta, **step.weights, initial_state=step.state, output_final_state=True,
        **shared,
    )  # fmt: skip


def _prepare(a: RecurrenceAttributes, sequences: int, compiled: bool) -> Prepared:
    sets = rotations(Step.random(a, sequences).bytes())
    _tune(a, sequences, sets)
    steps = [Step.random(a, sequences) for _ in range(sets)]
    peers: dict[str, Run] = {"torch": lambda i: steps[i].plain()}
    if compiled:
        plain = torch.compile(Step.plain, dynamic=False)
        peers["torch.compile"] = lambda i: plain(steps[i])
    fla = [run for run in map(_fla, steps) if run is not None]
    if fla:
        peers["fla, recurrence alone"] = lambda i: fla[i]()
    return Prepared(
        sets=sets,
        ours=lambda i: steps[i].run(),
        floor=Floor(
            bytes=steps[0].bytes(), written=steps[0].state.nbytes + steps[0].window.nbytes + steps[0].out.nbytes
        ),
        peers=peers,
        compare=steps[0].compare,
    )


def _bench(name: str, a: RecurrenceAttributes, sequences: int, goal: str = "", compiled: bool = False) -> Bench:
    return Bench(
        operator=f"recurrence decode {name}, fused",
        shape=f"B{sequences} H{a.key_heads}/{a.value_heads} D{a.key_dim}",
        prepare=lambda: _prepare(a, sequences, compiled),
        goal=goal,
    )


BENCHES: tuple[Bench, ...] = (
    _bench("KDA", KDA, 1, "<= 8 us"),
    _bench("KDA", KDA, 8),
    _bench("KDA", KDA, 64, ">= 85 % of floor", compiled=True),
    _bench("KDA", KDA, 256, ">= 85 % of floor"),
    _bench("GDN", GDN, 64),
    _bench("GDN", GDN, 256),
)
