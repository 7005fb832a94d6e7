"""Choice and read in one call: the result of the two apart, to the bit."""

import pytest
import torch

from day0.kernels.common.triton_attention_launch import problem, read
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.index_select.triton_cases import MEAN, TOKEN
from day0.kernels.index_select.triton_choose import choose, plan, workspace
from day0.kernels.interface.batch import Batch
from day0.kernels.registry import get_kind
from day0.kernels.sparse_attention.triton_chained import choose_and_read, place_columns
from tests.kernels.paged_reads import make_read

KIND = get_kind("index_select")
SMALL = {"block": 16, "warps": 1, "stages": 1, "waves": 1, "columns": 16}
NARROW = {"tile": 64, "list": 16, "warps": 1, "waves": 1}


class Problem:
    """A read of latents with rope keys, and an index over the same pages; the last row of queries is padding."""

    def __init__(self, form, device, dtype):
        self.a = a = KIND.parse(form)
        self.read = x = make_read(
            [1, 2, 0],
            [80, 3, 5],
            heads=4,
            kv_heads=1,
            value_dim=None,
            rope_dim=16,
            padding=1,
            device=device,
            dtype=dtype,
        )
        rows = x.q.shape[0]

        def values(*shape):
            return torch.randint(-2, 3, shape, device=device).to(dtype)

        self.q, self.weights = values(rows, a.heads * a.dim), values(rows, a.heads) if "weighted" in a.score else None
        self.keys = values(x.keys.shape[0] // a.pool, a.dim)
        select = NARROW if device == "cpu" else None
        scores = SMALL if device == "cpu" else None
        self.steps = plan(a, x.batch, rows, dtype, x.q.device, scores=scores, select=select)
        self.flag = torch.zeros(1, dtype=torch.int32, device=device)
        self.index_scratch = workspace(self.steps, x.q.device)

    def reading(self, indices, splits):
        x = self.read
        p = problem(x.q, x.keys, None, batch=x.batch, indices=indices, rope_keys=x.rope_keys)
        scratch = torch.full((p.scratch(splits),), float("nan"), device=x.q.device)
        options = dict(scale=x.scale, batch=x.batch, q_rope=x.q_rope, rope_keys=x.rope_keys)
        return torch.full_like(x.q, float("nan")), dict(scratch=scratch, splits=splits, **options)

    def apart(self, splits):
        x = self.read
        lists = torch.empty(x.q.shape[0], self.a.width, dtype=torch.int64, device=x.q.device)
        tensors = (self.q, self.keys, self.weights, lists, self.flag, self.index_scratch)
        choose(self.a, self.steps, *tensors, batch=x.batch)
        out, options = self.reading(lists, splits)
        read(x.q, x.keys, None, out, indices=lists, **options)
        return out

    def chained(self, splits, columns=None):
        x = self.read
        columns = place_columns(self.a) if columns is None else columns
        places = torch.full((x.q.shape[0], columns), 7, dtype=torch.int32, device=x.q.device)
        out, options = self.reading(places, splits)
        tensors = (self.q, self.keys, self.weights, x.q, x.keys, None, out)
        options |= dict(places=places, flag=self.flag, index_scratch=self.index_scratch)
        choose_and_read(self.a, self.steps, *tensors, **options)
        return out, places


@pytest.mark.parametrize(
    "device,dtype", [("cpu", torch.float32), pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("form,splits", [(TOKEN | dict(budget=70), 1), (MEAN, 3)], ids=["tokens", "pools with a tail"])
def test_the_result_is_that_of_the_two_apart(device, dtype, form, splits):
    p = Problem(form, device, dtype)
    # Splits of as many columns as a list has alone stand elsewhere: one part is the same in both.
    want, (out, places) = p.apart(1), p.chained(1)
    assert want[:3].abs().sum() > 0 and torch.equal(out, want)
    assert (places[3] == -1).all() and (places[:, p.a.width :] == -1).all()
    if splits > 1:
        parts, _ = p.chained(splits)
        assert (parts.float() - want.float()).abs().max() < (1e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [None, 1])
@pytest.mark.parametrize("contexts", [[65536], [9000] * 8, [40, 5000, 20000]], ids=["one long", "eight", "ragged"])
def test_a_read_that_starts_early_waits_for_the_choice(contexts, splits):
    """The read is launched while the choice is still at work: on ever new queries, so that what the choice before left
    in `places` would show, and several times without a wait in between."""
    a = KIND.parse(TOKEN | dict(heads=8, dim=64, budget=512))
    n, pages = len(contexts), [-(-(c + 1) // 64) for c in contexts]
    order = torch.randperm(sum(pages)).tolist()
    table = [[order.pop() for _ in range(count)] for count in pages]
    batch = Batch.pack(
        [[0]] * n, context_lens=contexts, slots=list(range(n)), pages=table, phase="decode", device="cuda"
    )
    rows, rounds = 64 * sum(pages), 12

    def draw(*shape):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    keys, latents, rope_keys = draw(rows, a.dim), draw(rows, 1, 512), draw(rows, 64)
    index_q, weights = draw(rounds, n, a.heads * a.dim), draw(rounds, n, a.heads)
    q, q_rope = draw(rounds, n, 64, 512), draw(rounds, n, 64, 64)
    steps = plan(a, batch, n, torch.bfloat16, keys.device)
    assert steps.parts > 1, "of one part, none lets the read start early"
    index_scratch, flag = workspace(steps, keys.device), torch.zeros(1, dtype=torch.int32, device="cuda")
    places = torch.zeros(n, place_columns(a), dtype=torch.int32, device="cuda")
    lists = torch.zeros(n, a.width, dtype=torch.int64, device="cuda")
    shape = problem(q[0], latents, None, batch=batch, indices=lists, rope_keys=rope_keys)
    splits = shape.splits(shape.config()) if splits is None else splits
    scratch = torch.zeros(shape.scratch(splits), device="cuda")
    options = dict(scale=0.05, batch=batch, rope_keys=rope_keys, scratch=scratch, splits=splits)
    want, got = torch.zeros_like(q), torch.zeros_like(q)
    for i in range(rounds):
        choose(a, steps, index_q[i], keys, weights[i], lists, flag, index_scratch, batch=batch)
        read(q[i], latents, None, want[i], indices=lists, q_rope=q_rope[i], **options)
    torch.cuda.synchronize()
    for _ in range(3):
        got.fill_(float("nan"))
        for i in range(rounds):
            choose_and_read(
                a, steps, index_q[i], keys, weights[i], q[i], latents, None, got[i], places=places, flag=flag,
                index_scratch=index_scratch, q_rope=q_rope[i], **options,
            )  # fmt: skip
        torch.cuda.synchronize()
        assert want.abs().sum() > 0 and torch.equal(got, want)


def test_refusals():
    p = Problem(TOKEN | dict(budget=70), "cpu", torch.float32)
    with pytest.raises(ContractError, match="places of shape"):
        p.chained(1, columns=64)
    x = p.read
    lists = torch.full((x.q.shape[0], 64), -1, dtype=torch.int64)
    out, options = p.reading(lists, 1)
    for damaged in (lists, lists[:, :10].int()):
        with pytest.raises(ContractError, match="placed indices in int32"):
            read(x.q, x.keys, None, out, indices=damaged, placed=True, **options)
