"""Prefill of the recurrence: two launches per window of chunks, over packed sequences of any lengths.

On a GPU the second launch of a window, which waits for memory and for itself most of the time, runs beside the first
one of the next window.

`prefill` stands in for the reference where a step brings many tokens; `launch` is the same with its output and its
scratch passed in, and allocates nothing. Both are safe in a CUDA graph: every size on the host follows from shapes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import require, require_tensor
from day0.kernels.common.triton_tuning import Bucket, Space, size_bucket
from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence import triton_prefill_channel, triton_prefill_head, triton_prefill_walk
from day0.kernels.recurrence.schema import RecurrenceAttributes
from day0.kernels.recurrence.triton_prefill_channel import channel_blocks
from day0.kernels.recurrence.triton_prefill_chunk import BLOCK, CHUNK
from day0.kernels.recurrence.triton_prefill_head import head_blocks
from day0.kernels.recurrence.triton_prefill_walk import walk

KERNEL = "recurrence prefill"
KINDS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
# Chunks times heads of a window: several programs for every multiprocessor. The state is in its slot in between.
WINDOW = 4096
# Of which the first window and the last are this part: nothing runs beside the one's first launch and the other's last.
EDGE = 4
# Extents of Triton's tiles are powers of two; its products take at least 16, registers hold at most 256.
_DIMS = (16, 32, 64, 128, 256)
# Largest exponent of a factor in a block around its half: exp of it, summed over a head's channels, is finite.
_LARGEST_EXPONENT = 80.0

# Slice of the channels, and the registers that a thread may take: with fewer, more programs hide each other's waits.
CHANNEL, HEAD = (
    Space(
        f"recurrence.prefill_{name}",
        str(source.__file__),
        tuple({"slice": 32, "num_warps": 4, "num_stages": 1, "maxnreg": registers} for registers in most),
    )
    for name, source, most in (
        ("channel", triton_prefill_channel, (168, 128)),
        ("head", triton_prefill_head, (128, 96)),
    )
)
# Slice of the state's columns, warps, tiles fetched ahead: for rows of up to 256 bytes, and for wider ones.
WALK, WALK_WIDE = (
    Space(
        f"recurrence.prefill_walk{name}",
        triton_prefill_walk.__file__,
        tuple({"block_v": v, "num_warps": w, "num_stages": s} for v, w, s in configs),
    )
    for name, configs in (
        ("", ((64, 4, 2), (32, 4, 2), (32, 4, 3), (16, 4, 2))),
        ("_wide", ((32, 4, 1), (64, 4, 1), (64, 8, 1), (32, 4, 2))),
    )
)


@dataclass(frozen=True)
class Checkpoints:
    """Where states after whole blocks of a step's tokens go, beside the final ones.

    After tokens (p + 1) * every of the tokens that sequence s brings to this step, its state is written to
    `states[rows[s, p]]`, unless rows[s, p] is negative. Raises nothing itself; `launch` checks.
    """

    states: Tensor  # [M, Hv, Dk, Dv]
    rows: Tensor  # [S, P] int64, P at least (most new tokens of a sequence) // every
    every: int  # tokens, a multiple of CHUNK


@dataclass(frozen=True)
class Workspace:
    """What the first pass leaves for the second, of `chunks` chunks. For layouts see the two kernels."""

    chunks: int
    scaled: Tensor  # [chunks, Hv, 3, CHUNK, Dk]: decayed keys, decayed queries, keys carried on; per channel only
    mixing: Tensor  # [chunks, Hv, 2, CHUNK, CHUNK]: R and P
    row_scales: Tensor  # float32 [chunks, Hv, 4, CHUNK]: of reads by keys, values, reads by queries, writes
    decay: Tensor  # float32 [chunks, Hv, Dk or 1], over the whole chunk

    def part(self, first: int, chunks: int) -> "Workspace":
        """That of `chunks` chunks from `first` on."""
        held = (x[first : first + chunks] for x in (self.scaled, self.mixing, self.row_scales, self.decay))
        return Workspace(chunks, *held)


def workspace(a: RecurrenceAttributes, tokens: int, sequences: int, *, dtype: torch.dtype, device: object) -> Workspace:
    """Scratch for `launch`, uninitialised: for all tokens' chunks or, of many, for two windows of them."""
    sizes = _windows(max(1, tokens // CHUNK + sequences), max(1, WINDOW // a.value_heads))
    chunks = sizes[0] if len(sizes) == 1 else 2 * max(sizes)  # of two windows
    channels = a.decay == "per_channel"

    def empty(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=kind, device=device)  # type: ignore[call-overload, no-any-return]

    return Workspace(
        chunks,
        scaled=empty(chunks if channels else 0, a.value_heads, 3, CHUNK, a.key_dim, kind=dtype),
        mixing=empty(chunks, a.value_heads, 2, CHUNK, CHUNK, kind=dtype),
        row_scales=empty(chunks, a.value_heads, 4, CHUNK),
        decay=empty(chunks, a.value_heads, a.key_dim if channels else 1),
    )


def prefill(
    a: RecurrenceAttributes,
    q: Tensor,  # [N, Hk * Dk]
    k: Tensor,  # [N, Hk * Dk]
    v: Tensor,  # [N, Hv * Dv]
    decay: Tensor | None = None,  # [N, Hv] or [N, Hv * Dk]
    beta: Tensor | None = None,  # [N, Hv]
    *,
    A_log: Tensor | None = None,  # [Hv]
    dt_bias: Tensor | None = None,  # [Hv] or [Hv * Dk]
    D: Tensor | None = None,  # [Hv]
    batch: Batch,
    state: Tensor,  # [slots, Hv, Dk, Dv], updated in place
    checkpoints: Checkpoints | None = None,
) -> Tensor:  # [N, Hv * Dv]
    """As the reference's `recurrence`. Raises ContractError before anything runs."""
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    scratch = workspace(a, v.shape[0], batch.sequences, dtype=v.dtype, device=v.device)
    launch(
        a, q, k, v, decay, beta, A_log=A_log, dt_bias=dt_bias, D=D, batch=batch, state=state, out=out,
        scratch=scratch, checkpoints=checkpoints,
    )  # fmt: skip
    return out


def launch(
    a: RecurrenceAttributes,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    *,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    D: Tensor | None,
    batch: Batch,
    state: Tensor,
    out: Tensor,  # [N, Hv * Dv], contiguous; rows of no sequence are left alone
    scratch: Workspace,
    checkpoints: Checkpoints | None = None,
    blocks_config: Mapping[str, int] | None = None,  # None: what was measured for this device
    walk_config: Mapping[str, int] | None = None,
) -> None:
    """`prefill` with everything it writes passed in. Raises ContractError before anything runs."""
    _check(a, q, k, v, decay, beta, A_log, dt_bias, D, batch, state, out, scratch, checkpoints)
    tokens, sequences = v.shape[0], batch.sequences
    if sequences == 0:
        return
    where = bucket(a, v.dtype, tokens, sequences)
    first = dict(blocks_space(a).config(where) if blocks_config is None else blocks_config)
    second = dict(walk_space(a, v.dtype).config(where) if walk_config is None else walk_config)
    slice_ = min(first.pop("slice"), a.key_dim)
    block_v = min(second.pop("block_v"), a.value_dim)
    channels = a.decay == "per_channel"
    form = a.decay if a.decay in ("none", "constant") else a.decay_form
    # Without a decay the constant one of scale 0 leaves exp(0).
    kind = KINDS[v.dtype]
    precision = "ieee" if v.dtype == torch.float32 else "tf32"
    step_max = float("inf") if a.time_step_max is None else a.time_step_max
    total = tokens // CHUNK + sequences
    kept, kept_rows, every = None, None, CHUNK
    if checkpoints is not None:
        kept, kept_rows, every = checkpoints.states, checkpoints.rows, checkpoints.every
    parts = 1 if total <= scratch.chunks or scratch.chunks == 1 else 2
    window = scratch.chunks // parts
    spaces = [scratch.part(n * window, window) for n in range(parts)]
    beside = _Beside(v.device, parts > 1)
    start = 0
    for number, held in enumerate(_windows(total, window)):
        part = spaces[number % parts]
        beside.wait_for_the_last_but_one()
        if channels:
            # float16 has no room for exp(80): such factors go into their product as tf32, with as many digits.
            wide = tl.float32 if v.dtype == torch.float16 else kind
            channel_blocks[(held * a.value_heads,)](
                q, k, decay, beta, A_log, dt_bias, batch.cu_seqlens, part.scaled, part.mixing,
                part.row_scales, part.decay, q.stride(0), k.stride(0), _row(decay), _row(beta), sequences, start,
                a.value_heads, a.value_heads // a.key_heads, _scale(a), a.qk_norm_eps, a.lower_bound, a.beta_scale,
                K=a.key_dim, SLICE=slice_, KIND=kind, WIDE=wide, PRECISION=precision, DELTA=a.delta_rule, FORM=form,
                BETA=a.beta, NORM=a.qk_norm == "l2", BOUNDED=one_pivot(a, v.dtype), **first,
            )  # fmt: skip
        else:
            head_blocks[(held * a.value_heads,)](
                q, k, decay, beta, A_log, dt_bias, batch.cu_seqlens, part.mixing, part.row_scales, part.decay,
                q.stride(0), k.stride(0), _row(decay), _row(beta), sequences, start,
                a.value_heads, a.value_heads // a.key_heads, _scale(a), a.qk_norm_eps, a.lower_bound, a.beta_scale,
                a.time_step_min, step_max, 0.0 if form == "none" else a.slope_scale,
                K=a.key_dim, SLICE=slice_, PRECISION=precision, DELTA=a.delta_rule,
                FORM="constant" if form == "none" else form, BETA=a.beta, NORM=a.qk_norm == "l2", **first,
            )  # fmt: skip
        with beside.run():
            walk[(a.value_heads * (a.value_dim // block_v), sequences)](
                q, k, v, out, part.scaled, part.mixing, part.row_scales, part.decay, state, D,
                batch.cu_seqlens, batch.context_lens, batch.slots,
                kept, kept_rows, q.stride(0), k.stride(0), v.stride(0), state.stride(0), _row(kept), _row(kept_rows),
                start, held, a.value_heads, a.value_heads // a.key_heads, every // CHUNK,
                K=a.key_dim, V=a.value_dim, BLOCK_V=block_v, KIND=kind, PRECISION=precision, PER_CHANNEL=channels,
                DELTA=a.delta_rule, SKIP=a.skip, KEEP=kept is not None, **second,
            )  # fmt: skip
        start += held
    beside.join()


def _windows(total: int, most: int) -> list[int]:
    """Chunks of each window, `most` at most, of `total` in all."""
    if total <= most:
        return [total]
    edge = min(max(1, most // EDGE), total // 2)
    middle = total - 2 * edge
    count = -(-middle // most)
    return [edge, *(middle * (n + 1) // count - middle * n // count for n in range(count)), edge]


@cache
def _urgent_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


class _Beside:
    """Runs what it is given on a stream of its own, after all that the caller's stream has so far; or just runs it.

    That stream is the more urgent one: the many programs of the other would let none of its few in between.
    """

    def __init__(self, device: torch.device, apart: bool) -> None:
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        if apart and device.type == "cuda":
            self._streams = torch.cuda.current_stream(device), _urgent_stream(device)
        self._done: list[torch.cuda.Event] = []

    def wait_for_the_last_but_one(self) -> None:
        """The caller's stream waits for all runs but the last."""
        if self._streams is not None and len(self._done) > 1:
            self._streams[0].wait_event(self._done[-2])

    @contextmanager
    def run(self) -> Iterator[None]:
        if self._streams is None:
            yield
            return
        caller, own = self._streams
        own.wait_stream(caller)
        with torch.cuda.stream(own):
            yield
        self._done.append(own.record_event())

    def join(self) -> None:
        """The caller's stream waits for all runs."""
        if self._done and self._streams is not None:
            self._streams[0].wait_event(self._done[-1])


def one_pivot(a: RecurrenceAttributes, dtype: torch.dtype) -> bool:
    """Whether a block takes the half of its log decays as its only pivot.

    The exponents then have to stay in range; and each factor's is off by the rounding of a number up to 80, which shows
    in float32 alone.
    """
    in_range = a.decay_form == "bounded_sigmoid" and -a.lower_bound * BLOCK / 2 <= _LARGEST_EXPONENT
    return in_range and dtype != torch.float32


def blocks_space(a: RecurrenceAttributes) -> Space:
    """The configurations of the first pass."""
    return CHANNEL if a.decay == "per_channel" else HEAD


def walk_space(a: RecurrenceAttributes, dtype: torch.dtype) -> Space:
    """The configurations that fit the shared memory that tiles of this width take."""
    return WALK if a.key_dim * dtype.itemsize <= 256 else WALK_WIDE


def fits(a: RecurrenceAttributes) -> bool:
    """Whether the head dims are ones that these kernels take."""
    return a.key_dim in _DIMS and a.value_dim in _DIMS


def bucket(a: RecurrenceAttributes, dtype: torch.dtype, tokens: int, sequences: int) -> Bucket:
    """Shapes that share one measured configuration."""
    row = f"{a.decay}-{'one' if one_pivot(a, dtype) else 'many'}-{'delta' if a.delta_rule else 'add'}"
    longest = size_bucket(max(tokens // max(sequences, 1), 1))
    return (row, str(dtype), a.value_heads, a.key_dim, a.value_dim, size_bucket(sequences), longest)


def _scale(a: RecurrenceAttributes) -> float:
    return float(a.key_dim**-0.5 if a.scale is None else a.scale)


def _row(x: Tensor | None) -> int:
    return 0 if x is None else x.stride(0)


def _check(
    a: RecurrenceAttributes,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    D: Tensor | None,
    batch: Batch,
    state: Tensor,
    out: Tensor,
    scratch: Workspace,
    checkpoints: Checkpoints | None,
) -> None:
    n, heads = v.shape[0], a.value_heads
    require(fits(a), KERNEL, f"head dims in {_DIMS}, not {a.key_dim} and {a.value_dim}")
    require(v.dtype in KINDS, KERNEL, f"bfloat16, float16 or float32, not {v.dtype}")
    require_tensor(KERNEL, "v", v, (n, heads * a.value_dim))
    for name, x in (("q", q), ("k", k)):
        require_tensor(KERNEL, name, x, (n, a.key_heads * a.key_dim), (v.dtype,))
    owned = a.decay_width > 0 and a.decay_form != "given"
    ports = (
        ("decay", decay, a.decay_width > 0, (n, a.decay_width), tuple(KINDS)),
        ("beta", beta, a.beta != "none", (n, heads), tuple(KINDS)),
        ("A_log", A_log, owned, (heads,), (torch.float32,)),
        ("dt_bias", dt_bias, owned, (a.decay_width,), (torch.float32,)),
        ("D", D, a.skip, (heads,), (torch.float32,)),
    )
    for name, port, wanted, shape, dtypes in ports:
        require((port is not None) == wanted, KERNEL, f"{name} {'given' if wanted else 'left out'} by its attributes")
        if port is not None:
            require_tensor(KERNEL, name, port, shape, dtypes)
    states = (heads, a.key_dim, a.value_dim)
    require_tensor(KERNEL, "state", state, (None, *states), (torch.float32, torch.bfloat16))
    require(state[0].is_contiguous(), KERNEL, "each slot of the state contiguous")
    require_tensor(KERNEL, "out", out, (n, heads * a.value_dim), (v.dtype,))
    require(out.is_contiguous(), KERNEL, "a contiguous out")
    s = batch.sequences
    for name, x, shape in (
        ("cu_seqlens", batch.cu_seqlens, (s + 1,)),
        ("context_lens", batch.context_lens, (s,)),
        ("slots", batch.slots, (s,)),
    ):
        require_tensor(KERNEL, name, x, shape, (torch.int64,))
    require(s <= 65535, KERNEL, f"at most 65535 sequences in a step, not {s}")
    wide = scratch.scaled if a.decay == "per_channel" else scratch.mixing
    made_for_it = wide.shape[:2] == (scratch.chunks, heads) and wide.dtype == v.dtype and scratch.chunks > 0
    require(made_for_it, KERNEL, "the workspace made for its attributes and dtype")
    if checkpoints is not None:
        every = checkpoints.every
        require(every > 0 and every % CHUNK == 0, KERNEL, f"checkpoints every multiple of {CHUNK} tokens, not {every}")
        require_tensor(KERNEL, "checkpoints.states", checkpoints.states, (None, *states), (state.dtype,))
        require(checkpoints.states[:1].flatten(1).stride(-1) == 1, KERNEL, "each checkpoint contiguous")
        require_tensor(KERNEL, "checkpoints.rows", checkpoints.rows, (s, None), (torch.int64,))
    devices = {x.device for x in (q, k, v, decay, beta, A_log, dt_bias, D, batch.slots, state, out) if x is not None}
    require(len(devices) == 1, KERNEL, "all tensors on one device")
