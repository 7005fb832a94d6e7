"""The index choice beside its floor and its peers: scores of all visible candidates and the best of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from day0.kernels.common.triton_bench import Bench, Deviation, Floor, Prepared, Run, rotations, tuning_seconds, wrong
from day0.kernels.index_select.reference import index_scores
from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.index_select.triton_cases import misplaced, score_error
from day0.kernels.index_select.triton_choose import SCORES, SELECT, Plan, bucket, choose, plan, workspace
from day0.kernels.interface.batch import PAGE_TOKENS, Batch

_HEADS, _DIM, _BUDGET = 64, 128, 2048


@dataclass
class _Set:
    """One set of inputs: `tokens` queries at the end of each of `sequences` sequences of `length` tokens."""

    q: Tensor
    weights: Tensor | None
    keys: Tensor
    batch: Batch
    out: Tensor
    scores: Tensor | None  # for torch.topk alone: decode only
    scales: tuple[Tensor, Tensor] | None = None


def _attributes(**changes: Any) -> IndexSelectAttributes:
    base = dict(heads=_HEADS, dim=_DIM, budget=_BUDGET, scale=_DIM**-0.5, score="relu_weighted", weight_scale=0.125)
    return IndexSelectAttributes.model_validate(base | changes)


def _batch(sequences: int, tokens: int, length: int) -> Batch:
    """Pages of all sequences in random order, each table as wide as its sequence."""
    pages = -(-length // PAGE_TOKENS)
    phase: Any = "decode" if tokens == 1 else "verify" if tokens <= 16 else "prefill"
    long = partial(torch.arange, dtype=torch.int64, device="cuda")
    context = torch.full((sequences,), length - tokens, dtype=torch.int64, device="cuda")
    return Batch(
        token_ids=torch.zeros(sequences * tokens, dtype=torch.int64, device="cuda"),
        positions=(context[:, None] + long(tokens)).flatten(),
        cu_seqlens=long(sequences + 1) * tokens,
        context_lens=context,
        slots=long(sequences),
        page_table=torch.randperm(sequences * pages, device="cuda").view(sequences, pages),
        phase=phase,
    )


def _set(a: IndexSelectAttributes, sequences: int, tokens: int, length: int, quantised: str = "") -> _Set:
    batch = _batch(sequences, tokens, length)
    rows, entries = sequences * tokens, batch.page_table.numel() * PAGE_TOKENS // a.pool
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    q, keys = draw(rows, a.heads * a.dim), draw(entries, a.dim)
    scales = None
    if quantised:
        (q, q_scales), (keys, key_scales) = quantise(q, quantised), quantise(keys, quantised)
        scales = q_scales, key_scales
    return _Set(
        q=q,
        weights=draw(rows, a.heads) if a.score == "relu_weighted" else None,
        keys=keys,
        batch=batch,
        out=torch.empty(rows, a.width, dtype=torch.int64, device="cuda"),
        scores=torch.randn(rows, length // a.pool, device="cuda") if tokens == 1 else None,
        scales=scales,
    )


def quantise(x: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """x [M, channels] as uint8 (form "e4m3") or int8 values, and uint8 exponents [M, channels / 32]; see `choose`."""
    groups = x.float().unflatten(-1, (-1, 32))
    largest = 448.0 if form == "e4m3" else 127.0
    exponent = torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-100) / largest))
    values = (groups / torch.exp2(exponent)).flatten(-2)
    packed = values.to(torch.float8_e4m3fn).view(torch.uint8) if form == "e4m3" else values.round().to(torch.int8)
    return packed, (exponent.squeeze(-1) + 127).to(torch.uint8)


def dequantise(values: Tensor, exponents: Tensor) -> Tensor:
    """What `quantise` stands for, in float32."""
    real = values.view(torch.float8_e4m3fn) if values.dtype == torch.uint8 else values
    groups: Tensor = real.float().unflatten(-1, (-1, 32)) * torch.exp2(exponents.float() - 127)[..., None]
    return groups.flatten(-2)


def _eager(a: IndexSelectAttributes, q: Tensor, keys: Tensor, weights: Tensor | None, batch: Batch) -> Tensor:
    """What torch does of the same: keys gathered, scores of all sequences at once, causal, the best sorted."""
    sequences, pages = batch.page_table.shape
    per_page = PAGE_TOKENS // a.pool
    entries = (batch.page_table[:, :, None] * per_page + torch.arange(per_page, device=q.device)).flatten(1)
    gathered = keys[entries]  # [S, C, dim]
    queries = q.view(sequences, -1, a.heads, a.dim)
    hits = torch.relu(torch.einsum("sthd,scd->sthc", queries, gathered))
    if weights is None:
        scores = hits.float().sum(2)
    else:
        scores = torch.einsum("sthc,sth->stc", hits, weights.view(sequences, -1, a.heads)).float()
    ends = torch.arange(1, entries.shape[1] + 1, device=q.device) * a.pool - 1
    scores = scores.masked_fill(ends > batch.positions.view(sequences, -1, 1), float("-inf"))
    return scores.topk(min(a.budget // a.pool, scores.shape[-1]), dim=-1).indices.sort(dim=-1).values


def _prepare(
    sequences: int,
    tokens: int,
    length: int,
    quantised: str = "",
    peers: bool = True,
    **changes: Any,
) -> Prepared:
    a = _attributes(**changes)
    candidates = length // a.pool
    size = 2 if not quantised else 1
    key_bytes = sequences * candidates * a.dim * size * (1 + (1 / 32 if quantised else 0))
    rows = sequences * tokens
    query_bytes = rows * a.heads * (a.dim * size + 2)
    sets = [_set(a, sequences, tokens, length, quantised) for _ in range(rotations(key_bytes + query_bytes))]
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    first = sets[0]
    steps = tune(a, sets, flag)
    scratch = workspace(steps, first.q.device)

    def ours(i: int) -> None:
        _choose(a, steps, sets[i], flag, scratch)

    # Queries see all candidates up to their own: of those that see no more than the budget nothing need be scored.
    k = a.budget // a.pool
    seen = [(length - tokens + t + 1) // a.pool for t in range(tokens)]
    pairs = sequences * sum(n for n in seen if n > k)
    floor = Floor(bytes=key_bytes + query_bytes + rows * a.width * 8, flops=2.0 * pairs * a.heads * a.dim)
    runs: dict[str, Run] = {}
    if peers:
        compiled = torch.compile(_eager, dynamic=False)

        def torch_run(function: Callable[..., Tensor], i: int) -> Tensor:
            s = sets[i]
            return function(a, s.q, s.keys, s.weights, s.batch)

        runs = {"torch": partial(torch_run, _eager), "torch.compile": partial(torch_run, compiled)}
    if first.scores is not None:

        def topk(i: int) -> object:
            scores = sets[i].scores
            assert scores is not None
            return scores.topk(min(k, scores.shape[1]), dim=-1)

        runs["torch.topk alone"] = topk
    return Prepared(
        sets=len(sets),
        ours=ours,
        floor=floor,
        peers=runs,
        compare=partial(_misplaced_rows, a, sets[-1], ours, len(sets) - 1),
    )


def _misplaced_rows(a: IndexSelectAttributes, s: _Set, ours: Run, number: int) -> Deviation:
    """How many of up to 8 queries are answered wrongly, for the scores of these very inputs in float64."""
    s.out.fill_(-7)
    ours(number)
    rows = torch.linspace(0, s.q.shape[0] - 1, min(8, s.q.shape[0]), device="cuda").long()
    per_page = PAGE_TOKENS // a.pool
    q, keys = (s.q, s.keys) if s.scales is None else (dequantise(s.q, s.scales[0]), dequantise(s.keys, s.scales[1]))
    count = 0
    for row in rows.tolist():
        sequence = row * s.batch.sequences // s.q.shape[0]
        pages = s.batch.page_table[sequence]
        mine = keys[(pages[:, None] * per_page + torch.arange(per_page, device="cuda")).flatten()]
        one, position = slice(row, row + 1), s.batch.positions[row : row + 1]
        weights = None if s.weights is None else s.weights[one]
        exact = None if weights is None else weights.double()
        scores, _ = index_scores(a, q[one].double(), mine.double(), exact, position)
        count += len(misplaced(a, s.out[one], scores, score_error(a, q[one], mine, weights), position))
    return wrong(count)


def _choose(a: IndexSelectAttributes, steps: Plan, s: _Set, flag: Tensor, scratch: Tensor) -> None:
    q_scales, key_scales = s.scales if s.scales is not None else (None, None)
    choose(
        a,
        steps,
        s.q,
        s.keys,
        s.weights,
        s.out,
        flag,
        scratch,
        batch=s.batch,
        q_scales=q_scales,
        key_scales=key_scales,
    )


def tune(a: IndexSelectAttributes, sets: list[_Set], flag: Tensor) -> Plan:
    """The fastest configurations for these inputs, measured (scores first, then the merge) unless they are known."""
    first = sets[0]
    rows, dtype, device = first.q.shape[0], first.q.dtype, first.q.device
    shape = bucket(a, first.batch, rows, dtype)

    def measured(**configs: Any) -> float:
        steps = plan(a, first.batch, rows, dtype, device, **configs)
        scratch = workspace(steps, device)
        return tuning_seconds(lambda i: _choose(a, steps, sets[i], flag, scratch), len(sets))

    scores = SCORES.tune(shape, lambda c: measured(scores=c))
    SELECT.tune(shape, lambda c: measured(scores=scores, select=c))
    return plan(a, first.batch, rows, dtype, device)


def _bench(shape: str, goal: str = "", **options: Any) -> Bench:
    return Bench("index_select", shape, partial(_prepare, **options), goal)


_DECODE: dict[str, Any] = dict(sequences=32, tokens=1, length=32768)
BENCHES: tuple[Bench, ...] = (
    _bench("decode B32 S32768 H64 D128 k2048", "<= 1/5 of compiled torch, < torch.topk alone", **_DECODE),
    _bench("decode B1 S65536 H64 D128 k2048", sequences=1, tokens=1, length=65536),
    _bench("decode B64 S4096 H64 D128 k2048", sequences=64, tokens=1, length=4096),
    _bench("prefill T4096 H64 D128 k2048", sequences=1, tokens=4096, length=4096),
    _bench("verify B32 T4 S32768 H64 D128 k2048", sequences=32, tokens=4, length=32768, peers=False),
    _bench("decode B32 S32768 H64 D128 k2048, pools of 4", pooling="mean", pool=4, tail=True, **_DECODE),
    _bench("decode B32 S32768 H64 D128 k2048, e4m3", "1.5x bf16", quantised="e4m3", peers=False, **_DECODE),
    _bench("decode B32 S32768 H64 D128 k2048, int8", "1.5x bf16", quantised="int8", peers=False, **_DECODE),
)
