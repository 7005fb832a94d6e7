"""Speed of quantising rows beside torch, and of quantising into a paged cache."""

from functools import partial
from typing import Any

import torch

from day0.kernels.common.triton_bench import Bench, Deviation, Floor, Prepared, Run, rotations, wrong
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.quantize.reference import GROUP, TILE, quantize_groups, quantize_tiles
from day0.kernels.quantize.triton_cases import differing
from day0.kernels.quantize.triton_quantize import quantize, quantize_into


def _rows(rows: int, channels: int, form: str, scales: torch.dtype) -> Prepared:
    width = GROUP if scales == torch.uint8 else TILE
    written = rows * channels + rows * channels // width * scales.itemsize
    moved = 2 * rows * channels + written
    sets = rotations(moved)
    xs = [torch.randn(rows, channels, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    reference = quantize_groups if scales == torch.uint8 else quantize_tiles
    outs = [[torch.empty_like(t) for t in reference(x, form)] for x in xs]
    torch._dynamo.reset()
    compiled = torch.compile(reference, dynamic=False)

    def ours(i: int) -> None:
        quantize(xs[i], *outs[i])

    def compare() -> Deviation:
        ours(0)
        # On the CPU: on a GPU torch divides by a number by multiplying with its inverse, which rounds twice.
        exact = reference(xs[0].cpu(), form)
        return wrong(sum(differing(a.cpu(), b) for a, b in zip(outs[0], exact, strict=True)))

    peers: dict[str, Run] = {
        "torch eager": lambda i: reference(xs[i], form),
        "torch.compile": lambda i: compiled(xs[i], form),
    }
    return Prepared(sets, ours, Floor(moved, written=written), compare, peers)


def _paged(sequences: int, channels: int) -> Prepared:
    """Keys and values of one token of each sequence, in tiles; the peer quantises and scatters in torch."""
    sets = 16
    pages = 4
    batch = Batch(
        token_ids=torch.zeros(sequences, dtype=torch.int64, device="cuda"),
        positions=torch.full((sequences,), 100, device="cuda"),
        cu_seqlens=torch.arange(sequences + 1, device="cuda"),
        context_lens=torch.full((sequences,), 100, device="cuda"),
        slots=torch.arange(sequences, device="cuda"),
        page_table=torch.randperm(sequences * pages, device="cuda").view(sequences, pages),
        phase="decode",
    )
    entries = sequences * pages * PAGE_TOKENS
    draw = partial(torch.randn, sequences, channels, device="cuda", dtype=torch.bfloat16)
    ports = [(draw(), draw()) for _ in range(sets)]
    empty: Any = partial(torch.empty, device="cuda")
    values = tuple(empty(entries, channels, dtype=torch.float8_e4m3fn) for _ in range(2))
    scales = tuple(empty(entries, channels // TILE) for _ in range(2))
    to = batch.page_table[:, 100 // PAGE_TOKENS] * PAGE_TOKENS + 100 % PAGE_TOKENS

    def ours(i: int) -> None:
        quantize_into(ports[i], values, scales, batch=batch)

    def eager(i: int) -> None:
        for port, pool, scale in zip(ports[i], values, scales, strict=True):
            packed, each = quantize_tiles(port, "e4m3")
            pool.view(torch.uint8)[to] = packed.view(torch.uint8)
            scale[to] = each

    def compare() -> Deviation:
        ours(0)
        count = 0
        for port, pool, scale in zip(ports[0], values, scales, strict=True):
            packed, each = quantize_tiles(port.cpu(), "e4m3")
            count += differing(pool.view(torch.uint8)[to].cpu(), packed.view(torch.uint8))
            count += differing(scale[to].cpu(), each)
        return wrong(count)

    written = 2 * sequences * (channels + channels // TILE * 4)
    floor = Floor(4 * sequences * channels + written, written=written)
    return Prepared(sets, ours, floor, compare, {"torch eager": eager})


BENCHES = (
    Bench("quantize", "4096 x 8192 e4m3, groups of 32", partial(_rows, 4096, 8192, "e4m3", torch.uint8)),
    Bench("quantize", "4096 x 8192 int8, groups of 32", partial(_rows, 4096, 8192, "int8", torch.uint8)),
    Bench("quantize", "32 x 8192 e4m3, groups of 32", partial(_rows, 32, 8192, "e4m3", torch.uint8)),
    Bench("quantize", "4096 x 1024 e4m3, tiles of 128", partial(_rows, 4096, 1024, "e4m3", torch.float32)),
    Bench("quantize", "keys and values of 64 tokens x 1024 into pages", partial(_paged, 64, 1024)),
)
