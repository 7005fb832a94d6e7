"""Inputs, peers and floors of the attention benches: reads of a paged cache, dense or of listed positions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from day0.kernels.common.numerics import upcast
from day0.kernels.common.triton_attention_launch import TILE, problem, read
from day0.kernels.common.triton_bench import Deviation, Floor, Prepared, deviation, rotations, time_us
from day0.kernels.common.triton_tuning import Config
from day0.kernels.interface.batch import PAGE_TOKENS, Batch

DTYPE = torch.bfloat16
# Keys, and values where they are not the keys: numbers [entries, heads, channels], and their scales where quantised.
_Kept = tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None] | None]


@dataclass(frozen=True)
class Shape:
    """`sequences` of `context` positions, of which the last `tokens` ask for `width` listed ones (None: all) each.

    `values` False: the keys are the values too (latents). `quantised`: dtype of the kept keys and values.
    """

    sequences: int
    context: int
    heads: int
    kv_heads: int
    dim: int
    rope_dim: int = 0
    values: bool = True
    width: int | None = None
    quantised: torch.dtype | None = None
    tokens: int = 1

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens

    @property
    def pairs(self) -> int:
        """Queries times positions that each attends to."""
        visible = range(self.context - self.tokens + 1, self.context + 1)
        return self.sequences * sum(v if self.width is None else min(v, self.width) for v in visible)

    def entry_bytes(self, quantised: bool) -> float:
        numbers = self.kv_heads * self.dim * (2 if self.values else 1)
        return (numbers * (1 + 4 / TILE) if quantised else numbers * 2) + 2 * self.rope_dim

    def floor(self) -> Floor:
        """Each attended entry once for a sequence, each list, query and result once; both products."""
        results = self.rows * self.heads * self.dim * 2
        queries = self.rows * self.heads * (self.dim + self.rope_dim) * 2
        lists = 0 if self.width is None else self.rows * self.width * 8
        entries = min(self.pairs, self.sequences * self.context) * self.entry_bytes(self.quantised is not None)
        flops = 2.0 * self.pairs * self.heads * (2 * self.dim + self.rope_dim)
        return Floor(entries + queries + results + lists, flops, written=results)


class Inputs:
    """Random queries and a cache per set, each set in scattered pages of its own of the same pools."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.sets = rotations(shape.floor().bytes)
        n, pages = shape.sequences, -(-shape.context // PAGE_TOKENS)
        rows = self.sets * n * pages * PAGE_TOKENS
        self.scale = (shape.dim + shape.rope_dim) ** -0.5
        self.keys = _random(rows, shape.kv_heads, shape.dim)
        self.values = _random(rows, shape.kv_heads, shape.dim) if shape.values else None
        self.rope_keys = _random(rows, shape.rope_dim) if shape.rope_dim else None
        q = shape.rows
        self.q = [_random(q, shape.heads, shape.dim) for _ in range(self.sets)]
        self.q_rope = [_random(q, shape.heads, shape.rope_dim) if shape.rope_dim else None for _ in range(self.sets)]
        self.out = torch.full((self.sets, q, shape.heads, shape.dim), float("nan"), dtype=DTYPE, device="cuda")
        table = torch.randperm(self.sets * n * pages, device="cuda").reshape(self.sets, n, pages)
        own = torch.arange(shape.context - shape.tokens, shape.context, device="cuda").repeat(n)
        starts = torch.arange(n + 1, device="cuda") * shape.tokens
        context = torch.full((n,), shape.context - shape.tokens, device="cuda")
        slots = torch.arange(n, device="cuda")
        self.own = own
        self.batches = [
            Batch(own, own, starts, context, slots, table[i], "decode" if shape.tokens == 1 else "prefill")
            for i in range(self.sets)
        ]
        self.indices: list[Tensor | None] = [self._lists() for _ in range(self.sets)]

    def _lists(self) -> Tensor | None:
        """[rows, width] positions up to each query's own in random order, -1 where there are fewer."""
        if self.shape.width is None:
            return None
        lists = []
        for own in self.own.split(512):
            order = torch.rand(len(own), self.shape.context, device="cuda")
            order.masked_fill_(torch.arange(self.shape.context, device="cuda") > own[:, None], -1.0)
            highest, indices = order.topk(min(self.shape.width, self.shape.context), dim=1)
            lists.append(indices.masked_fill(highest < 0, -1))
        return torch.cat(lists)

    def rows(self, i: int) -> Tensor:
        """[sequences, context] pool rows of a set, or [rows, width] of its lists; for holes some row."""
        table, positions = self.batches[i].page_table, self.indices[i]
        if positions is None:
            positions = torch.arange(self.shape.context, device="cuda").expand(self.shape.sequences, -1)
        else:
            table = table.repeat_interleave(self.shape.tokens, dim=0)
        page = table.gather(1, positions.clamp(min=0) // PAGE_TOKENS)
        return page * PAGE_TOKENS + positions.clamp(min=0) % PAGE_TOKENS


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DTYPE, device="cuda")


def quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(values, scales) of x [..., channels], with one float32 scale for each 128 channels."""
    most = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    values, scales = torch.empty_like(x, dtype=dtype), x.new_empty(*x.shape[:-1], x.shape[-1] // TILE).float()
    for part, v, s in zip(x.split(2**20), values.split(2**20), scales.split(2**20), strict=True):
        tiles = part.float().unflatten(-1, (-1, TILE))
        scale = tiles.abs().amax(-1) / most
        scaled = (tiles / scale[..., None]).flatten(-2)
        v.copy_(scaled.round() if dtype == torch.int8 else scaled)
        s.copy_(scale)
    return values, scales


def dequantise(values: Tensor, scales: Tensor) -> Tensor:
    """What `quantise` stands for, in float64."""
    tiles: Tensor = values.double().unflatten(-1, (-1, TILE)) * scales.double()[..., None]
    return tiles.flatten(-2)


def prepare(shape: Shape) -> Prepared:
    """Ours, tuned for the shape on these inputs, and its peers."""
    x = Inputs(shape)
    plain = _reader(x, x.keys, x.values)
    peers: dict[str, Callable[[int], object]] = {}
    kept: _Kept = (x.keys, None), None if x.values is None else (x.values, None)
    if shape.quantised is None:
        ours = plain
        peers = _peers(x)
    else:
        kept = quantise(x.keys, shape.quantised), None if x.values is None else quantise(x.values, shape.quantised)
        (kept_keys, key_scales), (kept_values, value_scales) = kept[0], kept[1] or (None, None)
        ours = _reader(x, kept_keys, kept_values, key_scales, value_scales)
        peers["ours in bf16"] = plain

    def compare() -> Deviation:
        ours(0)
        # The first rows, and the last, which see most.
        rows = sorted({*range(min(shape.rows, 4)), shape.rows - 1})
        plain, exact = (
            torch.stack([_attended(x, kept, row, dtype) for row in rows]) for dtype in (DTYPE, torch.float64)
        )
        return deviation((x.out[0, rows], plain, exact))

    return Prepared(x.sets, ours, shape.floor(), compare, peers)


def _reader(
    x: Inputs,
    keys: Tensor,
    values: Tensor | None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Callable[[int], object]:
    shape = problem(x.q[0], keys, values, batch=x.batches[0], indices=x.indices[0], rope_keys=x.rope_keys)
    space = shape.space
    configs = (shape.config(),) if space is None else space.configs
    scratch = torch.empty(max(shape.scratch(shape.splits(c)) for c in configs), device="cuda")

    def run(i: int, config: Config) -> None:
        read(
            x.q[i],
            keys,
            values,
            x.out[i],
            scale=x.scale,
            batch=x.batches[i],
            indices=x.indices[i],
            q_rope=x.q_rope[i],
            rope_keys=x.rope_keys,
            key_scales=key_scales,
            value_scales=value_scales,
            scratch=scratch,
            config=config,
        )

    def seconds(config: Config) -> float:
        try:
            return time_us(lambda i: run(i, config), x.sets)[0] * 1e-6
        except triton.runtime.errors.OutOfResources:
            return float("inf")

    config = configs[0] if space is None else space.tune(shape.bucket, seconds)
    return lambda i: run(i, config)


def _peers(x: Inputs) -> dict[str, Callable[[int], object]]:
    """PyTorch on the same cache, given the pool rows of each position; and SDPA on keys and values laid out for it."""
    if x.shape.tokens > 1:
        return _prefill_peers(x)
    rows = [x.rows(i) for i in range(x.sets)]
    read_rows = _latent_rows if x.values is None else _kv_rows
    compiled = torch.compile(read_rows, dynamic=False)

    def with_rows(function: Callable[..., Tensor]) -> Callable[[int], object]:
        return lambda i: function(x.q[i], x.q_rope[i], x.keys, x.values, x.rope_keys, rows[i], x.scale)

    peers = {"eager": with_rows(read_rows), "compiled": with_rows(compiled)}
    if x.values is not None and x.shape.width is None:
        keys = [x.keys[r].transpose(1, 2) for r in rows]
        values = [x.values[r].transpose(1, 2) for r in rows]
        peers["sdpa, contiguous"] = lambda i: _sdpa(x.q[i], keys[i], values[i], x.scale)
        laid_out = [(k.contiguous(), v.contiguous()) for k, v in zip(keys, values, strict=True)]
        peers["sdpa, contiguous heads"] = lambda i: _sdpa(x.q[i], *laid_out[i], x.scale)
    return peers


def _prefill_peers(x: Inputs) -> dict[str, Callable[[int], object]]:
    """Causal SDPA of whole sequences from their pages, gathered in the run; PyTorch has no other that reads lists."""
    shape = x.shape
    if x.values is None or shape.width is not None or shape.tokens != shape.context:
        return {}
    rows = [x.rows(i) for i in range(x.sets)]
    values = x.values

    def gathered(i: int) -> Tensor:
        q = x.q[i].unflatten(0, (shape.sequences, shape.tokens)).transpose(1, 2)
        keys, kept = x.keys[rows[i]].transpose(1, 2), values[rows[i]].transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(
            q, keys, kept, is_causal=True, scale=x.scale, enable_gqa=True
        )

    return {"gather + sdpa": gathered}


def _latent_rows(
    q: Tensor, q_rope: Tensor | None, keys: Tensor, _: None, rope_keys: Tensor | None, rows: Tensor, scale: float
) -> Tensor:
    latents = keys[rows, 0]
    scores = q @ latents.mT
    if q_rope is not None and rope_keys is not None:
        scores = scores + q_rope @ rope_keys[rows].mT
    return (scores.float() * scale).softmax(-1).to(q.dtype) @ latents


def _kv_rows(q: Tensor, _: None, keys: Tensor, values: Tensor, __: None, rows: Tensor, scale: float) -> Tensor:
    return _sdpa(q, keys[rows].transpose(1, 2), values[rows].transpose(1, 2), scale)


def _sdpa(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """The query heads of a group as rows of one query, so that keys are read once for all of them."""
    grouped = q.unflatten(1, (keys.shape[1], -1))
    return torch.nn.functional.scaled_dot_product_attention(grouped, keys, values, scale=scale).flatten(1, 2)


def _attended(x: Inputs, kept: _Kept, query: int, dtype: torch.dtype) -> Tensor:
    """The first set's result of a row in plain torch, of the keys and values as they are kept: what quantising them
    costs is not the read's error."""
    listed = x.indices[0]
    if listed is None:
        rows = x.rows(0)[query // x.shape.tokens, : int(x.own[query]) + 1]
    else:
        rows = x.rows(0)[query][listed[query] >= 0]

    def entries(pool: Tensor, scales: Tensor | None) -> Tensor:
        return (pool[rows] if scales is None else dequantise(pool[rows], scales[rows])).to(dtype)

    keys = entries(*kept[0])
    values = keys if kept[1] is None else entries(*kept[1])
    q = x.q[0][query].to(dtype).unflatten(0, (keys.shape[1], -1))
    scores = torch.einsum("ghd,tgd->ght", upcast(q), upcast(keys))
    q_rope = x.q_rope[0]
    if q_rope is not None and x.rope_keys is not None:
        rotary = q_rope[query].to(dtype).unflatten(0, (keys.shape[1], -1))
        scores = scores + torch.einsum("ghd,td->ght", upcast(rotary), upcast(x.rope_keys[rows].to(dtype)))
    return torch.einsum("ght,tgd->ghd", (scores * x.scale).softmax(-1).to(dtype), values).flatten(0, 1)
