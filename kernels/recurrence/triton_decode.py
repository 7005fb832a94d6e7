# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Recurrent decode in one launch: short convolution, gates, norms, state update and read, gated output norm.

Per sequence and value head, with the state S [Dk, Dv] in registers:

    q, k, v <- act(conv(.))              optional: causal short convolution over the window state
    q, k    <- l2 norms; q <- scale q
    S'      =  exp(g) S
    u       =  beta (v - k^T S'), or beta v without the delta rule
    S       <- S' + k u^T
    y       =  q^T S' + (q . k) u + D v  (= q^T S + D v: both reads of the decayed state share one pass)
    y       <- norm(y) gated             optional

The algebra is the reference's (arXiv 2412.06464, 2510.26692, 2405.21060, 2401.04658). A step moves the state twice and
little else: 2 * 4 * Dk * Dv bytes a head against some 2 KB of inputs. So only the state's bytes matter, and every other
piece is done here because here it costs no launch.

A program owns one tile of columns of one head of one sequence. Small tiles keep the memory busy: of many programs on
a multiprocessor some load and store while others sum. Value heads that share a key head, and tiles of one head, read
the same channels of the convolution's window and share the norm's sum. A ticket counts them: each leaves its part of
the output in scratch memory, and the last one writes the new window and the norm of all parts.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from day0.kernels.common.triton_launch import INTERPRETED, next_power_of_2, require, require_tensor
from day0.kernels.common.triton_tuning import Config, Space, size_bucket
from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence.schema import RecurrenceAttributes
from day0.kernels.recurrence.triton_pieces import (
    ACTIVATIONS,
    KERNEL,
    OutputNorm,
    ShortConv,
    arrive,
    conv_arguments,
    convolve,
    inner_products,
    load_decay,
    load_norm,
    log_decay,
    norm_arguments,
    normalise,
    push,
    read_twice,
)

# `tile`: elements of the state in one program's registers, where the norm of several tokens does not need the whole
# head; `part`: columns that neighbouring threads hold; `maxnreg`: registers of a thread at most (0: as many as the
# compiler likes), so that 128 KiB of states are in a multiprocessor's registers at once; `first`: 1 where L2 gives up
# states before all else, which helps few sequences and hinders many. The first configuration also holds a head.
SPACE = Space(
    KERNEL,
    __file__,
    tuple(
        dict(zip(("tile", "part", "num_warps", "maxnreg", "first"), config, strict=True))
        for config in (
            (16384, 64, 4, 0, 1),
            (16384, 64, 4, 0, 0),
            (16384, 64, 4, 168, 0),
            (8192, 64, 2, 0, 1),
            (8192, 64, 2, 0, 0),
            (8192, 64, 2, 200, 0),
            (8192, 64, 4, 128, 0),
            (4096, 32, 2, 128, 1),
        )
    ),
)
STATES = (torch.float32, torch.bfloat16)
MAX_HEAD_DIM = 256
# The most state elements that a warp can hold, in 128 registers of a thread, and a program.
WARP_TILE = 4096
MAX_TILE = 32768


@dataclass(frozen=True)
class Workspace:
    """Scratch memory of one launch at a time."""

    tickets: Tensor  # [sequences, key heads] int32: zeros before the first launch, and after each
    outputs: Tensor  # [sequences, Hv * Dv] float32: outputs before their norm


def workspace(a: RecurrenceAttributes, sequences: int, device: torch.device | str) -> Workspace:
    """What programs share that read one window or one norm's sum, for launches of up to so many sequences."""
    return Workspace(
        torch.zeros(sequences, a.key_heads, dtype=torch.int32, device=device),
        torch.empty(sequences, a.value_heads * a.value_dim, dtype=torch.float32, device=device),
    )


@triton.jit
def state_offsets(slot, slot_stride, head, rows, columns, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr):
    """Where a head's tile is in the pool, in 64 bits, since slots * Hv * Dk * Dv soon exceeds 2^31; and the offsets
    [rows, parts, part of the columns] in it, in 32 bits, of which the compiler makes immediates."""
    base = slot.to(tl.int64) * slot_stride + head * (KEY_DIM * VALUE_DIM)
    return base, rows[:, None, None] * VALUE_DIM + columns[None, :, :]


@triton.jit
def decode_kernel(
    q, k, v, decay, beta, gate, out, state, window, conv_weight, conv_bias, A_log, dt_bias, D, norm_weight,
    cu_seqlens, context_lens, slots, accepted, tickets, outputs,
    q_row, k_row, v_row, decay_row, beta_row, gate_row, out_row, state_slot, window_slot,
    scale, qk_norm_eps, lower_bound, slope_scale, step_min, step_max, beta_scale, norm_eps,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PART: tl.constexpr, FULL_V: tl.constexpr,
    DELTA_RULE: tl.constexpr, DECAY: tl.constexpr, DECAY_FORM: tl.constexpr, BETA: tl.constexpr, QK_NORM: tl.constexpr,
    SKIP: tl.constexpr,
    TAPS: tl.constexpr, TAPS_BLOCK: tl.constexpr, CONV_BIAS: tl.constexpr, CONV_ACTIVATION: tl.constexpr,
    Q_AT: tl.constexpr, K_AT: tl.constexpr, V_AT: tl.constexpr,
    NORM: tl.constexpr, NORM_WEIGHT: tl.constexpr, GATE: tl.constexpr, GATE_FIRST: tl.constexpr,
    SINGLE: tl.constexpr, LIMITED: tl.constexpr, OUTPUT: tl.constexpr, COMMIT: tl.constexpr,
    EVICTION: tl.constexpr,
):  # fmt: skip
    """SINGLE: at most one token a sequence; LIMITED: its first `accepted` tokens only; COMMIT: write state, window."""
    # Only one token's outputs fit the scratch memory.
    SPLIT: tl.constexpr = NORM and FULL_V > BLOCK_V
    MOVES: tl.constexpr = COMMIT and TAPS > 0
    TILES: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    GROUP: tl.constexpr = VALUE_HEADS // KEY_HEADS
    WINDOW: tl.constexpr = TAPS - 1
    program = tl.program_id(0)
    head = program // TILES % VALUE_HEADS
    sequence = program // (TILES * VALUE_HEADS)
    # All that the state's address takes is asked for at once: each answer takes as long as a tenth of the whole.
    start = tl.load(cu_seqlens + sequence)
    tokens = tl.load(cu_seqlens + sequence + 1) - start
    context = tl.load(context_lens + sequence)
    slot = tl.load(slots + sequence).to(tl.int64)
    if LIMITED:
        tokens = tl.minimum(tokens, tl.load(accepted + sequence))
    if tokens <= 0:
        return
    key_head = head // GROUP
    rows = tl.arange(0, BLOCK_K)
    # [parts, PART]: a warp then holds several rows of few columns: fewer registers for q, k and g.
    first = program % TILES * BLOCK_V
    columns = first + tl.arange(0, BLOCK_V // PART)[:, None] * PART + tl.arange(0, PART)[None, :]
    is_row = rows < KEY_DIM
    is_column = columns < VALUE_DIM
    is_state = is_row[:, None, None] & is_column[None, :, :]
    # The state first: nothing else takes as long to arrive. The compiler moves no load behind the barrier; without it,
    # it would ask for the state where it needs it.
    base, offsets = state_offsets(slot, state_slot, head, rows, columns, KEY_DIM, VALUE_DIM)
    own_state = state + base
    known = (rows < tl.where(context > 0, KEY_DIM, 0))[:, None, None] & is_column[None, :, :]
    s = tl.load(own_state + offsets, mask=known, other=0.0, eviction_policy=EVICTION)
    tl.debug_barrier()
    s = s.to(tl.float32)

    q_at = key_head * KEY_DIM
    v_at = head * VALUE_DIM
    # Channels of this head in the convolution: its weights, and its window in the sequence's slot.
    own_window = window + slot * window_slot
    q_window = own_window + (Q_AT + q_at) * WINDOW
    k_window = own_window + (K_AT + q_at) * WINDOW
    v_window = own_window + (V_AT + v_at) * WINDOW
    flat = first + tl.arange(0, BLOCK_V)
    is_flat = flat < VALUE_DIM
    if TAPS > 0:
        q_weight = conv_weight + (Q_AT + q_at) * TAPS
        k_weight = conv_weight + (K_AT + q_at) * TAPS
        v_weight = conv_weight + (V_AT + v_at) * TAPS
        q_bias = conv_bias + Q_AT + q_at
        k_bias = conv_bias + K_AT + q_at
        v_bias = conv_bias + V_AT + v_at
    # A loop over a constant of one unrolls: decode has no loop that could hold back the loads.
    for i in range(0, 1 if SINGLE else tokens):
        row = start if SINGLE else start + i
        # All of a token's loads before the first barrier, which the compiler moves none across.
        if BETA != "none":
            strength = tl.load(beta + row * beta_row + head).to(tl.float32)
        if NORM and not SPLIT:
            z, w = load_norm(gate + row * gate_row + v_at, norm_weight, columns, is_column, NORM_WEIGHT, GATE)
        f, log_rate = load_decay(decay, decay_row, row, A_log, dt_bias, head, rows, is_row, DECAY, DECAY_FORM, KEY_DIM)
        if TAPS > 0:
            keys = convolve(
                k + q_at, k_row, start, row, context, k_window, k_weight, k_bias, rows, is_row,
                TAPS, CONV_BIAS, CONV_ACTIVATION,
            )  # fmt: skip
            queries = convolve(
                q + q_at, q_row, start, row, context, q_window, q_weight, q_bias, rows, is_row,
                TAPS, CONV_BIAS, CONV_ACTIVATION,
            )  # fmt: skip
            values = convolve(
                v + v_at, v_row, start, row, context, v_window, v_weight, v_bias, flat, is_flat,
                TAPS, CONV_BIAS, CONV_ACTIVATION,
            )  # fmt: skip
            values = tl.reshape(values, [BLOCK_V // PART, PART])
        else:
            keys = tl.load(k + row * k_row + q_at + rows, mask=is_row, other=0.0).to(tl.float32)
            queries = tl.load(q + row * q_row + q_at + rows, mask=is_row, other=0.0).to(tl.float32)
            values = tl.load(v + row * v_row + v_at + columns, mask=is_column, other=0.0).to(tl.float32)
        g, steps = log_decay(
            f, log_rate, head, lower_bound, slope_scale, step_min, step_max, DECAY, DECAY_FORM, VALUE_HEADS
        )
        # Scales of k and q, in one number each, on what was computed of them.
        key_scale, query_scale = 1.0, scale
        if QK_NORM or OUTPUT:
            kk, qq, kq = inner_products(keys, queries)
        if QK_NORM:
            key_scale = tl.rsqrt(kk + qk_norm_eps)
            query_scale = scale * tl.rsqrt(qq + qk_norm_eps)
        s *= tl.exp(g)[:, None, None]
        u = values
        if DECAY_FORM == "time_step":
            # Every channel holds the head's one time step.
            u *= tl.max(tl.where(is_row, steps, 0.0), 0)
        if DELTA_RULE and OUTPUT:
            known_value, o = read_twice(s, keys, queries)
        elif DELTA_RULE:
            known_value = tl.sum(s * keys[:, None, None], 0)
        elif OUTPUT:
            o = tl.sum(s * queries[:, None, None], 0)
        if DELTA_RULE:
            u -= key_scale * known_value
        if BETA != "none":
            u *= beta_scale * tl.sigmoid(strength) if BETA == "sigmoid" else strength
        u *= key_scale
        if OUTPUT:
            o = query_scale * (o + kq * u)
            if SKIP:
                o += tl.load(D + head).to(tl.float32) * values
            if SPLIT:
                tl.store(outputs + (sequence * VALUE_HEADS + head) * VALUE_DIM + columns, o, mask=is_column)
            else:
                if NORM:
                    o = normalise(o, z, w, norm_eps, VALUE_DIM, NORM_WEIGHT, GATE, GATE_FIRST)
                tl.store(out + row * out_row + v_at + columns, o.to(out.dtype.element_ty), mask=is_column)
        s += keys[:, None, None] * u[None, :, :]

    # Before the state's stores: what others see of this program would wait for them too.
    if MOVES or SPLIT:
        last = arrive(tickets + sequence * KEY_HEADS + key_head, GROUP * TILES)
    if COMMIT:
        tl.store(own_state + offsets, s.to(state.dtype.element_ty), mask=is_state, eviction_policy=EVICTION)
    if MOVES:
        newest = start if SINGLE else start + tokens - 1
        push(v + v_at, v_row, start, newest, context, v_window, flat, is_flat, TAPS, TAPS_BLOCK)
        if last:
            push(q + q_at, q_row, start, newest, context, q_window, rows, is_row, TAPS, TAPS_BLOCK)
            push(k + q_at, k_row, start, newest, context, k_window, rows, is_row, TAPS, TAPS_BLOCK)
    if SPLIT:
        if last:
            every = tl.arange(0, FULL_V)
            known_every = every < VALUE_DIM
            for other in range(key_head * GROUP, key_head * GROUP + GROUP):
                at = other * VALUE_DIM
                z, w = load_norm(gate + start * gate_row + at, norm_weight, every, known_every, NORM_WEIGHT, GATE)
                o = tl.load(outputs + sequence * VALUE_HEADS * VALUE_DIM + at + every, mask=known_every, other=0.0)
                o = normalise(o, z, w, norm_eps, VALUE_DIM, NORM_WEIGHT, GATE, GATE_FIRST)
                tl.store(out + start * out_row + at + every, o.to(out.dtype.element_ty), mask=known_every)


def bucket(a: RecurrenceAttributes, sequences: int, *, whole: bool) -> tuple[int | str, ...]:
    """Launches that share a tuned configuration; `whole`: a program must hold all columns of a head."""
    return (size_bucket(sequences), a.value_heads, a.key_dim, a.value_dim, "whole" if whole else "tiles")


def launch(
    a: RecurrenceAttributes,
    q: Tensor,  # [N, Hk * Dk]; with `conv`, q, k and v are its inputs, views of one tensor or not
    k: Tensor,  # [N, Hk * Dk]
    v: Tensor,  # [N, Hv * Dv]
    decay: Tensor | None,  # [N, Hv] or [N, Hv * Dk]
    beta: Tensor | None,  # [N, Hv]
    *,
    A_log: Tensor | None = None,  # [Hv]
    dt_bias: Tensor | None = None,  # [Hv] or [Hv * Dk]
    D: Tensor | None = None,  # [Hv]
    batch: Batch,
    state: Tensor,  # [slots, Hv, Dk, Dv] float32 or bfloat16, updated in place where `commit`
    out: Tensor | None,  # [N, Hv * Dv], written; None: only the state moves
    conv: ShortConv | None = None,
    norm: OutputNorm | None = None,
    scratch: Workspace | None = None,  # for a convolution or a norm that several programs share
    accepted: Tensor | None = None,  # [S]: run over the first so many tokens of each sequence only
    commit: bool = True,
    config: Config | None = None,
) -> None:
    """Runs each sequence's new tokens one after the other, in one launch. Rows past cu_seqlens[S] are not touched, and
    a sequence without tokens touches nothing; phase "decode" takes at most one token a sequence.

    Raises ContractError, before anything runs, on what the kernel cannot take.
    """
    n, sequences = q.shape[0], batch.sequences
    _require_ports(a, q, k, v, decay, beta, A_log, dt_bias, D, outputs=out is not None)
    single = batch.phase == "decode" and accepted is None
    require(not single or n <= sequences, KERNEL, "at most one token a sequence in decode")
    require_tensor(KERNEL, "state", state, (None, a.value_heads, a.key_dim, a.value_dim), STATES)
    require(state[:1].is_contiguous(), KERNEL, "a state whose slots are contiguous")
    require(q.is_cuda or INTERPRETED, KERNEL, "a CUDA device")
    require(norm is None or out is not None, KERNEL, "an output to normalise")
    if out is not None:
        require_tensor(KERNEL, "out", out, (n, a.value_heads * a.value_dim), ACTIVATIONS)
    if accepted is not None:
        require_tensor(KERNEL, "accepted", accepted, (sequences,), (torch.int64, torch.int32))
    whole = norm is not None and not single
    chosen = config or SPACE.config(bucket(a, sequences, whole=whole))
    block_k, block_v = block_sizes(a, chosen, whole=whole)
    tiles = -(-a.value_dim // block_v)
    shares_window = conv is not None and commit and tiles * (a.value_heads // a.key_heads) > 1
    require(
        scratch is not None or not (shares_window or (norm is not None and tiles > 1)),
        KERNEL,
        "scratch memory (see workspace): several programs share one window or one norm",
    )
    if scratch is not None:
        _require_scratch(a, scratch, sequences)
    pieces = conv_arguments(a, conv, q) | norm_arguments(a, n, norm, q)
    grid = (sequences * a.value_heads * tiles,)
    if sequences == 0:
        return
    decode_kernel[grid](
        q, k, v,
        q if decay is None else decay,
        q if beta is None else beta,
        out=q if out is None else out,
        state=state,
        A_log=q if A_log is None else A_log,
        dt_bias=q if dt_bias is None else dt_bias,
        D=q if D is None else D,
        cu_seqlens=batch.cu_seqlens,
        context_lens=batch.context_lens,
        slots=batch.slots,
        accepted=batch.slots if accepted is None else accepted,
        tickets=q if scratch is None else scratch.tickets,
        outputs=q if scratch is None else scratch.outputs,
        q_row=q.stride(0),
        k_row=k.stride(0),
        v_row=v.stride(0),
        decay_row=0 if decay is None else decay.stride(0),
        beta_row=0 if beta is None else beta.stride(0),
        out_row=0 if out is None else out.stride(0),
        state_slot=state.stride(0),
        scale=float(a.key_dim**-0.5 if a.scale is None else a.scale),
        qk_norm_eps=a.qk_norm_eps,
        lower_bound=a.lower_bound,
        slope_scale=a.slope_scale,
        step_min=a.time_step_min,
        step_max=float("inf") if a.time_step_max is None else a.time_step_max,
        beta_scale=a.beta_scale,
        KEY_HEADS=a.key_heads,
        VALUE_HEADS=a.value_heads,
        KEY_DIM=a.key_dim,
        VALUE_DIM=a.value_dim,
        BLOCK_K=block_k,
        BLOCK_V=block_v,
        PART=min(block_v, chosen["part"]),
        FULL_V=next_power_of_2(a.value_dim),
        DELTA_RULE=a.delta_rule,
        DECAY=a.decay,
        DECAY_FORM=a.decay_form,
        BETA=a.beta,
        QK_NORM=a.qk_norm == "l2",
        SKIP=a.skip,
        SINGLE=single,
        LIMITED=accepted is not None,
        OUTPUT=out is not None,
        COMMIT=commit,
        EVICTION="evict_first" if chosen["first"] else "",
        num_warps=max(chosen["num_warps"], block_k * block_v // WARP_TILE),
        maxnreg=chosen["maxnreg"] or None,
        **pieces,
    )  # fmt: skip


def block_sizes(a: RecurrenceAttributes, config: Config, *, whole: bool) -> tuple[int, int]:
    """Rows and columns of a program's tile; `whole`: all columns, for the norm of several tokens."""
    block_k, full = next_power_of_2(a.key_dim), next_power_of_2(a.value_dim)
    require(not whole or block_k * full <= MAX_TILE, KERNEL, f"at most {MAX_TILE} state elements a head with a norm")
    return block_k, full if whole else max(1, min(full, config["tile"] // block_k))


def _require_ports(
    a: RecurrenceAttributes,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    D: Tensor | None,
    *,
    outputs: bool,
) -> None:
    require(max(a.key_dim, a.value_dim) <= MAX_HEAD_DIM, KERNEL, f"head dims of at most {MAX_HEAD_DIM}")
    n = q.shape[0]
    keys, values = (n, a.key_heads * a.key_dim), (n, a.value_heads * a.value_dim)
    require_tensor(KERNEL, "q", q, keys, ACTIVATIONS)
    require_tensor(KERNEL, "k", k, keys, (q.dtype,))
    require_tensor(KERNEL, "v", v, values, (q.dtype,))
    owned = a.decay_width > 0 and a.decay_form != "given"
    optional = (
        ("decay", decay, (n, a.decay_width), a.decay_width > 0),
        ("beta", beta, (n, a.value_heads), a.beta != "none"),
        ("A_log", A_log, (a.value_heads,), owned),
        ("dt_bias", dt_bias, (a.decay_width,), owned),
        ("D", D, (a.value_heads,), a.skip and outputs),
    )
    for name, x, shape, wanted in optional:
        require((x is not None) == wanted, KERNEL, f"{name}" if wanted else f"no {name}, as its attributes have none")
        if x is not None:
            require_tensor(KERNEL, name, x, shape, ACTIVATIONS)


def _require_scratch(a: RecurrenceAttributes, scratch: Workspace, sequences: int) -> None:
    require_tensor(KERNEL, "scratch.tickets", scratch.tickets, (None, a.key_heads), (torch.int32,))
    require_tensor(KERNEL, "scratch.outputs", scratch.outputs, (None, a.value_heads * a.value_dim), (torch.float32,))
    for x in (scratch.tickets, scratch.outputs):
        require(x.shape[0] >= sequences and x.is_contiguous(), KERNEL, "contiguous scratch for every sequence")
