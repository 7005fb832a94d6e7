"""Speed of the draw beside what torch does of the same: sort, cut, draw."""

from functools import partial

import torch
from torch import Tensor

from day0.kernels.common.triton_bench import Bench, Deviation, Floor, Prepared, Run, rotations, wrong
from day0.kernels.sample.reference import allowed
from day0.kernels.sample.triton_sample import sample, workspace

VOCABULARY = 151_936


def _prepare(rows: int, temperature: float, top_k: int, top_p: float) -> Prepared:
    """Logits whose nucleus has some hundred tokens. What may be wrong: rows that drew what they may not."""
    sets = rotations(4 * rows * VOCABULARY)
    many = [3 * torch.randn(rows, VOCABULARY, device="cuda") for _ in range(sets)]
    outs = [torch.empty(rows, dtype=torch.int64, device="cuda") for _ in range(sets)]

    def column(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device="cuda")

    options = dict(
        temperature=column(temperature),
        top_k=column(top_k, torch.int32),
        top_p=column(top_p),
        min_p=column(0.0),
        seed=torch.arange(rows, device="cuda"),
        position=column(0, torch.int64),
        scratch=torch.empty(workspace(rows, VOCABULARY), device="cuda"),
    )

    def ours(i: int) -> None:
        sample(many[i], outs[i], **options)

    def by_sorting(i: int) -> Tensor:
        values, ids = many[i].sort(dim=-1, descending=True)
        p = torch.softmax(values / temperature, dim=-1)
        if top_k:
            p[:, top_k:] = 0.0
            p /= p.sum(-1, keepdim=True)
        p[p.cumsum(-1) - p >= top_p] = 0.0
        place = (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True)
        return ids.gather(1, place)

    def compare() -> Deviation:
        ours(0)
        count = 0
        for row in range(min(rows, 8)):
            mask, _ = allowed(many[0][row].cpu(), temperature=temperature, top_k=top_k, top_p=top_p, min_p=0.0)
            count += not mask[outs[0][row]]
        return wrong(count)

    peers: dict[str, Run] = {"torch.sort": by_sorting, "torch.topk alone": lambda i: many[i].topk(50, dim=-1)}
    return Prepared(sets, ours, Floor(4.0 * rows * VOCABULARY), compare, peers)


BENCHES = tuple(
    Bench("sample", f"{rows} x {VOCABULARY}, {what}", partial(_prepare, rows, *options), "< torch.topk alone")
    for rows in (1, 64)
    for what, options in (
        ("temperature", (0.8, 0, 1.0)),
        ("top-k 50", (0.8, 50, 1.0)),
        ("top-p 0.95", (0.8, 0, 0.95)),
        ("top-k 50 and top-p 0.95", (0.8, 50, 0.95)),
    )
)
