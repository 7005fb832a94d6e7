"""Speed of the residual schemes around a branch: what its output changes in the stream, and the next branch's input."""

import importlib
from collections.abc import Callable, Mapping
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
from day0.kernels.common.triton_tuning import Config
from day0.kernels.residual_mix import reference, triton_attention, triton_gated_streams, triton_mhc
from day0.kernels.residual_mix.schema import ResidualMixAttributes, weights
from day0.kernels.residual_mix.triton_fused import mhc_outputs

MHC = ResidualMixAttributes(
    scheme="mhc", width=4096, streams=4, norm_eps=1e-6, sinkhorn_iterations=20, mix_eps=1e-6
)  # fmt: skip
GATED = ResidualMixAttributes(scheme="gated_streams", width=2048, streams=4, norm_eps=1e-6, rank=128)
ATTENTION = ResidualMixAttributes(scheme="attention", width=4096, sources=8, norm_eps=1e-6, weighted_keys=True)
COMPARED = 64  # tokens held to float64


def _draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def _weights(a: ResidualMixAttributes) -> dict[str, Tensor]:
    made = {}
    for name, spec in weights(a).items():
        scale = spec.shape[-1] ** -0.5 if len(spec.shape) > 1 else 0.5
        value = torch.randn(spec.shape, device="cuda") * scale
        made[name] = value if spec.dtype == "float32" else value.bfloat16()
    return made


def _double(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in values.items()}


def _compiled(step: Callable[..., object]) -> Callable[..., object]:
    torch._dynamo.reset()
    compiled: Callable[..., object] = torch.compile(step, dynamic=False)
    return compiled


def _post_pre(a: ResidualMixAttributes, owned: Mapping[str, Tensor], h: Tensor, y: Tensor, *mix: Tensor) -> object:
    """The stream after one branch and the next one's input, by the reference."""
    new = reference.post(a, h, y, mix if a.scheme == "mhc" else mix[0])
    return new, reference.pre(a, new, **owned)


def _reads(
    a: ResidualMixAttributes, ours: list[Tensor], h: Tensor, owned: Mapping[str, Tensor]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """What `pre` gives of a stream and how `post` mixes it, for `deviation`: ours, the plain reference's, float64."""

    def read(h: Tensor, owned: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        x, mix = reference.pre(a, h, **owned)
        return (x, *mix) if isinstance(mix, tuple) else (x, mix)

    return list(zip(ours, read(h, owned), read(h.double(), _double(owned)), strict=True))


def _mhc(tokens: int) -> Prepared:
    a, owned = MHC, _weights(MHC)
    moved = 2 * (2 * a.streams + 2) * tokens * a.width
    sets = rotations(moved)
    hs = [_draw(tokens, a.streams, a.width) for _ in range(sets)]
    ys = [_draw(tokens, a.width) for _ in range(sets)]
    mixes = [mhc_outputs(h)[1:] for h in hs]
    for gates, mixing in mixes:
        gates.uniform_(0, 2)
        mixing.copy_(torch.rand_like(mixing).softmax(-1))
    news = [torch.empty_like(h) for h in hs]
    outs = [mhc_outputs(h) for h in hs]
    few = tokens <= triton_mhc.FEW
    space = triton_mhc.FEW_SPACE if few else triton_mhc.MANY_SPACE
    bucket = triton_mhc.bucket(tokens, a.streams, a.width)

    def run(config: Config, scratch: Tensor, i: int) -> None:
        triton_mhc.read(
            hs[i], owned["fn"], owned["base"], owned["scale"], norm_eps=a.norm_eps, mix_eps=a.mix_eps,
            iterations=a.sinkhorn_iterations, out=outs[i], scratch=scratch, written=(ys[i], *mixes[i]),
            h_new=news[i], launch=dict(config),
        )  # fmt: skip

    def measure(config: Config) -> float:
        return tuning_seconds(partial(run, config, triton_mhc.workspace(hs[0], launch=dict(config))), sets)

    chosen = space.tune(bucket, measure)
    ours = partial(run, chosen, triton_mhc.workspace(hs[0], launch=dict(chosen)))
    step = partial(_post_pre, a, owned)
    compiled = _compiled(step)

    def compare() -> Deviation:
        ours(0)
        h, y, gates, mixing, new, *read = (t[:COMPARED] for t in (hs[0], ys[0], *mixes[0], news[0], *outs[0]))
        written = reference.post(a, h, y, (gates, mixing))
        exact = reference.post(a, h.double(), y.double(), (gates.double(), mixing.double()))
        # The read is of the stream as it was written.
        return deviation((new, written, exact), *_reads(a, read, new, owned))

    rows = (2 + a.streams) * a.streams
    mix_bytes = 2 * tokens * 4 * a.streams * (1 + a.streams)
    floor = Floor(
        moved + owned["fn"].nbytes + mix_bytes,
        2.0 * tokens * rows * a.streams * a.width,
        written=(moved + mix_bytes) / 2,
    )
    peers = {
        "torch eager": lambda i: step(hs[i], ys[i], *mixes[i]),
        "torch.compile": lambda i: compiled(hs[i], ys[i], *mixes[i]),
    }
    return Prepared(sets, ours, floor, compare, peers)


def _gated(tokens: int) -> Prepared:
    a, owned = GATED, _weights(GATED)
    moved = 2 * (2 * a.streams + 2) * tokens * a.width
    sets = rotations(moved)
    hs = [_draw(tokens, a.streams, a.width) for _ in range(sets)]
    ys = [_draw(tokens, a.width) for _ in range(sets)]
    mixes = [torch.rand(tokens, a.streams, device="cuda").bfloat16() for _ in range(sets)]
    news = [torch.empty_like(h) for h in hs]
    outs = [(torch.empty_like(y), torch.empty_like(mix)) for y, mix in zip(ys, mixes, strict=True)]
    few = tokens <= triton_gated_streams.FEW
    space = triton_gated_streams.FEW_SPACE if few else triton_gated_streams.MANY_SPACE
    bucket = triton_gated_streams.bucket(tokens, a.streams, a.width, a.rank)

    def run(config: Config, scratch: tuple[Tensor, Tensor, Tensor], i: int) -> None:
        triton_gated_streams.write(hs[i], ys[i], mixes[i], out=news[i])
        triton_gated_streams.read(
            news[i], owned["norm"], owned["down"], owned["up"], owned["inject"], norm_eps=a.norm_eps, out=outs[i],
            scratch=scratch, launch=dict(config),
        )  # fmt: skip

    def measure(config: Config) -> float:
        scratch = triton_gated_streams.workspace(hs[0], a.rank, launch=dict(config))
        return tuning_seconds(partial(run, config, scratch), sets)

    chosen = space.tune(bucket, measure)
    ours = partial(run, chosen, triton_gated_streams.workspace(hs[0], a.rank, launch=dict(chosen)))
    step = partial(_post_pre, a, owned)
    compiled = _compiled(step)

    def compare() -> Deviation:
        ours(0)
        h, y, mix, new, *read = (t[:COMPARED] for t in (hs[0], ys[0], mixes[0], news[0], *outs[0]))
        written, exact = reference.post(a, h, y, mix), reference.post(a, h.double(), y.double(), mix.double())
        # The read is of the stream as it was written.
        return deviation((new, written, exact), *_reads(a, read, new, owned))

    floor = Floor(
        moved + sum(w.nbytes for w in owned.values()),
        2.0 * tokens * (2 * a.rank + a.streams) * a.streams * a.width,
        written=moved / 2,
    )
    peers = {
        "torch eager": lambda i: step(hs[i], ys[i], mixes[i]),
        "torch.compile": lambda i: compiled(hs[i], ys[i], mixes[i]),
    }
    return Prepared(sets, ours, floor, compare, peers)


def _attention(tokens: int) -> Prepared:
    a, owned = ATTENTION, _weights(ATTENTION)
    moved = 2 * (a.sources + 1) * tokens * a.width
    sets = rotations(moved)
    hs = [_draw(tokens, a.sources, a.width) for _ in range(sets)]
    outs = [(h.new_empty(tokens, a.width), torch.empty(tokens, a.sources, device="cuda")) for h in hs]

    def run(config: Config, i: int) -> None:
        triton_attention.read(
            hs[i], owned["query"], owned["key_weight"], norm_eps=a.norm_eps, scale=a.scale, normed=False,
            out=outs[i], launch=dict(config),
        )  # fmt: skip

    bucket = triton_attention.bucket(tokens, a.sources, a.width)
    chosen = triton_attention.SPACE.tune(bucket, lambda config: tuning_seconds(partial(run, config), sets))
    ours = partial(run, chosen)

    def step(h: Tensor) -> object:
        return reference.pre(a, h, **owned)

    compiled = _compiled(step)

    def compare() -> Deviation:
        ours(0)
        return deviation(*_reads(a, [t[:COMPARED] for t in outs[0]], hs[0][:COMPARED], owned))

    peers: dict[str, Run] = {"torch eager": lambda i: step(hs[i]), "torch.compile": lambda i: compiled(hs[i])}
    written = 2 * tokens * a.width + 4 * tokens * a.sources
    floor = Floor(moved + 4 * tokens * a.sources, written=written)
    theirs = _fla(hs, owned["query"], owned["key_weight"], a)
    return Prepared(sets, ours, floor, compare, peers | theirs)


def _fla(hs: list[Tensor], query: Tensor, key_weight: Tensor, a: ResidualMixAttributes) -> dict[str, Run]:
    """fla takes its sources as separate tensors: it gets them contiguous."""
    try:
        fused = importlib.import_module("fla.ops.attnres").fused_attnres
    except ImportError:
        return {}
    sources = [[s.contiguous() for s in h.unbind(1)] for h in hs]
    return {"fla": lambda i: fused(query, sources[i], key_weight, rms_eps=a.norm_eps, scale=a.scale)}


BENCHES = (
    *(
        Bench("mHC post + pre", f"{n} tokens, 4 x 4096", partial(_mhc, n), goal)
        for n, goal in ((64, ">= 10x eager torch"), (4096, ">= 10x eager torch, >= 60 % of floor"))
    ),
    Bench("Attention Residuals", "8192 tokens, 8 x 4096", partial(_attention, 8192), ">= 75 % of floor"),
    Bench("Attention Residuals", "64 tokens, 8 x 4096", partial(_attention, 64)),
    *(Bench("gated streams post + pre", f"{n} tokens, 4 x 2048, rank 128", partial(_gated, n)) for n in (64, 4096)),
)
