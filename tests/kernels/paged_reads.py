"""Caches, batches and float64 results for the tests of the Triton attention reads."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from day0.kernels.interface.batch import PAGE_TOKENS, Batch


@dataclass
class Read:
    """What `read` takes: queries, pools full of NaN but for the sequences' own rows, the batch, lists."""

    q: Tensor
    keys: Tensor
    values: Tensor | None
    batch: Batch
    scale: float
    indices: Tensor | None = None
    q_rope: Tensor | None = None
    rope_keys: Tensor | None = None

    def arguments(self):
        return (self.q, self.keys, self.values), dict(
            scale=self.scale,
            batch=self.batch,
            indices=self.indices,
            q_rope=self.q_rope,
            rope_keys=self.rope_keys,
        )

    def exact(self):
        """float64 [N, heads, value_dim], one query at a time."""
        heads, kv_heads = self.q.shape[1], self.keys.shape[1]
        values = self.keys if self.values is None else self.values
        out = torch.zeros(*self.q.shape[:2], values.shape[2], dtype=torch.float64)
        for s, (first, end, context) in enumerate(self.batch.spans()):
            for n in range(first, end):
                positions = list(range(context + n - first + 1))
                if self.indices is not None:
                    positions = [p for p in self.indices[n].tolist() if p != -1]
                if not positions:
                    continue
                rows = [
                    int(self.batch.page_table[s, p // PAGE_TOKENS]) * PAGE_TOKENS + p % PAGE_TOKENS for p in positions
                ]
                q = self.q[n].cpu().double().unflatten(0, (kv_heads, heads // kv_heads))
                scores = torch.einsum("ghd,tgd->ght", q, self.keys[rows].cpu().double())
                if self.q_rope is not None:
                    rotary = self.q_rope[n].cpu().double() @ self.rope_keys[rows].cpu().double().T
                    scores = scores + rotary.unflatten(0, (kv_heads, -1))
                weights = (scores * self.scale).softmax(-1)
                out[n] = torch.einsum("ght,tgd->ghd", weights, values[rows].cpu().double()).flatten(0, 1)
        return out


def _rows(pages, positions):
    return [pages[p // PAGE_TOKENS] * PAGE_TOKENS + p % PAGE_TOKENS for p in positions]


def make_read(
    lengths,  # new tokens of each sequence
    contexts,
    *,
    heads=4,
    kv_heads=2,
    dim=16,
    value_dim=16,  # None: the keys are the values
    rope_dim=0,
    width=None,
    padding=0,  # rows of queries past the last sequence
    dtype=torch.float32,
    device="cpu",
    seed=0,
):
    """A random read. Lists hold random parts of the past in random order, with holes."""
    generator = torch.Generator().manual_seed(seed)
    order = random.Random(seed)
    totals = [n + c for n, c in zip(lengths, contexts, strict=True)]
    needed = [-(-t // PAGE_TOKENS) for t in totals]
    free = order.sample(range(sum(needed) + 2), sum(needed))
    pages = [[free.pop() for _ in range(n)] for n in needed]
    batch = Batch.pack(
        [[0] * n for n in lengths],
        context_lens=contexts,
        slots=list(range(len(lengths))),
        pages=pages,
        device=device,
    )
    rows = (sum(needed) + 2) * PAGE_TOKENS
    own = [
        p[t // PAGE_TOKENS] * PAGE_TOKENS + t % PAGE_TOKENS
        for p, n in zip(pages, totals, strict=True)
        for t in range(n)
    ]

    def pool(*shape):
        made = torch.full((rows, *shape), float("nan"))
        made[own] = torch.randn(len(own), *shape, generator=generator)
        return made.to(device, dtype)

    count = sum(lengths) + padding

    def queries(*shape):
        return torch.randn(count, heads, *shape, generator=generator).to(device, dtype)

    indices = None
    if width is not None:
        indices = torch.full((count, width), -1)
        positions = [c + i for n, c in zip(lengths, contexts, strict=True) for i in range(n)]
        for n, t in enumerate(positions):
            chosen = int(torch.randint(0, min(t + 1, width) + 1, (), generator=generator))
            columns = torch.randperm(width, generator=generator)[:chosen]
            indices[n, columns] = torch.randperm(t + 1, generator=generator)[:chosen]
        indices = indices.to(device)
    return Read(
        q=queries(dim),
        keys=pool(kv_heads, dim),
        values=None if value_dim is None else pool(kv_heads, value_dim),
        batch=batch,
        scale=dim**-0.5,
        indices=indices,
        q_rope=queries(rope_dim) if rope_dim else None,
        rope_keys=pool(rope_dim) if rope_dim else None,
    )
