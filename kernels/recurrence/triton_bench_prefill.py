"""Speed of the recurrence's prefill beside fla's chunked kernels, fed with the same inputs and gates."""

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

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
from day0.kernels.common.triton_tuning import Config
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.kind import Work
from day0.kernels.recurrence import chunked, reference
from day0.kernels.recurrence.cost import cost
from day0.kernels.recurrence.schema import RecurrenceAttributes, weights
from day0.kernels.recurrence.triton_prefill import blocks_space, bucket, launch, walk_space, workspace

_COMPARED = 512  # tokens of the first sequence held against the float64 token loop
_DIMS: dict[str, Any] = dict(key_dim=128, value_dim=128)
KDA = RecurrenceAttributes(
    **_DIMS, key_heads=64, value_heads=64, delta_rule=True, decay="per_channel", decay_form="bounded_sigmoid",
    beta="sigmoid", qk_norm="l2",
)  # fmt: skip
GDN = RecurrenceAttributes(
    **_DIMS, key_heads=16, value_heads=32, delta_rule=True, decay="per_head", beta="sigmoid", qk_norm="l2"
)
LIGHTNING = RecurrenceAttributes(**_DIMS, key_heads=32, value_heads=32, delta_rule=False, decay="constant")
MAMBA2 = RecurrenceAttributes(
    key_heads=1, value_heads=64, key_dim=128, value_dim=64, delta_rule=False, decay="per_head", decay_form="time_step",
    scale=1.0, skip=True,
)  # fmt: skip

_Ports = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def _prepare(a: RecurrenceAttributes, sequences: int, length: int) -> Prepared:
    """Fresh sequences of one length; every input set has its own ports and its own slots."""
    n = sequences * length
    work = cost(a, Work("prefill", n, sequences, 0))
    moved = work.bytes_read + work.bytes_written
    sets = rotations(moved)
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)

    def ports() -> _Ports:
        q, k = draw(n, a.key_heads * a.key_dim), draw(n, a.key_heads * a.key_dim)
        if a.qk_norm == "none":
            k.mul_(a.key_dim**-0.5)
        decay = draw(n, a.decay_width) if a.decay_width else None
        return q, k, draw(n, a.value_heads * a.value_dim), decay, draw(n, a.value_heads) if a.beta != "none" else None

    inputs = [ports() for _ in range(sets)]
    extra: dict[str, Any] = dict(A_log=None, dt_bias=None, D=None)
    extra |= {name: torch.randn(w.shape, device="cuda") * 0.5 for name, w in weights(a).items()}
    batches = [
        Batch.pack(
            [[0] * length] * sequences,
            context_lens=[0] * sequences,
            slots=list(range(i * sequences, (i + 1) * sequences)),
            pages=[[]] * sequences,
            device="cuda",
        )
        for i in range(sets)
    ]
    state = torch.empty(sets * sequences, a.value_heads, a.key_dim, a.value_dim, device="cuda")
    outputs = [torch.empty_like(p[2]) for p in inputs]
    scratch = workspace(a, n, sequences, dtype=torch.bfloat16, device="cuda")

    def ours(i: int, blocks: Config | None = None, walk: Config | None = None) -> None:
        launch(
            a, *inputs[i], **extra, batch=batches[i], state=state, out=outputs[i], scratch=scratch,
            blocks_config=blocks, walk_config=walk,
        )  # fmt: skip

    key = bucket(a, torch.bfloat16, n, sequences)
    blocks_space(a).tune(key, lambda config: tuning_seconds(partial(ours, blocks=config), sets))
    walk_space(a, torch.bfloat16).tune(key, lambda config: tuning_seconds(partial(ours, walk=config), sets))

    few = min(_COMPARED, length)

    def token_loop(ports: Sequence[Tensor | None], owned: Mapping[str, Any], kept: Tensor) -> Tensor:
        """The reference over the first tokens of the first sequence, which starts from nothing."""
        one = Batch.pack([[0] * few], context_lens=[0], slots=[0], pages=[[]], device="cuda")
        q, k, v, decay, beta = ports
        assert q is not None and k is not None and v is not None
        return reference.recurrence(a, q, k, v, decay, beta, **owned, batch=one, state=kept)

    def compare() -> Deviation:
        ours(0)
        some = [None if p is None else p[:few] for p in inputs[0]]
        wide = [None if p is None else p.double() for p in some]
        owned = {name: None if w is None else w.double() for name, w in extra.items()}
        plain, exact = token_loop(some, extra, state[:1].clone()), token_loop(wide, owned, state[:1].double())
        return deviation((outputs[0][:few], plain, exact))

    def torch_chunked(i: int) -> Tensor:
        return chunked.recurrence(a, *inputs[i], **extra, batch=batches[i], state=state)

    peers = _fla(a, inputs, extra, sequences, length) | ({"torch chunked": torch_chunked} if n <= 4096 else {})
    return Prepared(sets, ours, Floor(moved, work.flops), compare, peers)


def _fla(
    a: RecurrenceAttributes, inputs: list[_Ports], extra: Mapping[str, Any], sequences: int, length: int
) -> dict[str, Run]:
    """The kernel of fla-core 0.6 for these attributes, its inputs laid out as it wants them; empty without fla."""
    try:
        ops = importlib.import_module("fla.ops")
    except ImportError:
        return {}

    def heads(x: Tensor, count: int) -> Tensor:
        return x.view(sequences, length, count, -1)

    sets: list[dict[str, Any]] = []
    for q, k, v, decay, beta in inputs:
        one: dict[str, Any] = dict(q=heads(q, a.key_heads), k=heads(k, a.key_heads), v=heads(v, a.value_heads))
        if beta is not None:
            one |= dict(beta=beta.view(sequences, length, -1), use_beta_sigmoid_in_kernel=True)
            one |= dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True)
            one |= dict(A_log=extra["A_log"], dt_bias=extra["dt_bias"])
        if a.decay == "constant":
            one["g_gamma"] = -a.slope_scale * 2.0 ** (-8.0 / a.value_heads * torch.arange(1, a.value_heads + 1).cuda())
        elif a.decay_form == "time_step":
            assert decay is not None
            step = torch.nn.functional.softplus(decay.float() + extra["dt_bias"])
            one["g"] = (-extra["A_log"].exp() * step).view(sequences, length, -1)
            one["v"] = (one["v"] * step.view(sequences, length, -1, 1)).to(v.dtype)
            # One key head for all: that kernel has no grouped values.
            one |= {name: one[name].expand(-1, -1, a.value_heads, -1).contiguous() for name in ("q", "k")}
        else:
            assert decay is not None
            one["g"] = heads(decay, a.value_heads) if a.decay == "per_channel" else decay.view(sequences, length, -1)
        if a.decay_form == "bounded_sigmoid":
            one |= dict(safe_gate=True, lower_bound=a.lower_bound)
        sets.append(one | dict(scale=a.scale, output_final_state=True))
    name = (
        ("chunk_kda" if a.decay == "per_channel" else "chunk_gated_delta_rule") if a.delta_rule else "chunk_simple_gla"
    )
    kernel = getattr(ops, name)

    def run(i: int) -> object:
        with torch.inference_mode():
            return kernel(**sets[i])

    return {f"fla {name}": run}


BENCHES = tuple(
    Bench("recurrence", f"prefill {name}, {sequences} x {length}", partial(_prepare, a, sequences, length), goal)
    for name, a, sequences, length, goal in (
        ("kda 64 heads 128", KDA, 1, 4096, ">= 2x fla"),
        ("kda 64 heads 128", KDA, 1, 32768, ">= 2x fla"),
        ("gdn 16/32 heads 128", GDN, 1, 32768, ">= 1.3x fla"),
        ("kda 64 heads 128", KDA, 1, 512, "not slower than fla"),
        ("kda 64 heads 128", KDA, 32, 256, "not slower than fla"),
        ("gdn 16/32 heads 128", GDN, 32, 256, "not slower than fla"),
        ("lightning 32 heads 128", LIGHTNING, 1, 8192, "not slower than fla"),
        ("mamba-2 64 heads 128/64", MAMBA2, 1, 8192, "not slower than fla"),
    )
)
