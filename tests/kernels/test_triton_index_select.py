"""index_select in Triton: against the float64 reference, over windows, splits, packings, ties and NaN."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.kernels.common.conformance import check
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.index_select import triton_choose, triton_fused
from day0.kernels.index_select.contract import TRITON
from day0.kernels.index_select.reference import index_scores, index_select, select
from day0.kernels.index_select.triton_bench import dequantise, quantise
from day0.kernels.index_select.triton_blocks import entry_of, first_row, sequence_of
from day0.kernels.index_select.triton_cases import CASES, MEAN, SOFTMAX, SUM, TOKEN, misplaced, score_error
from day0.kernels.index_select.triton_choose import choose, plan, workspace
from day0.kernels.index_select.triton_fused import index_select as fused
from day0.kernels.index_select.triton_fused import nan_seen
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.registry import get_kind
from tests.kernels.paged import PagedSequences

KIND = get_kind("index_select")
ON_GPU = pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu)
EVERYWHERE = pytest.mark.parametrize("device,dtype", [("cpu", torch.float32), ON_GPU])
# Lists of 16 candidates, so that a few dozen have to be narrowed to one.
SMALL = {"block": 16, "warps": 1, "stages": 1, "waves": 1, "columns": 16}
PAIRS = SMALL | {"columns": 32}
NARROW = {"tile": 64, "list": 16, "warps": 1, "waves": 1}
WIDE = TOKEN | dict(budget=20)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_conforms(case):
    assert [f for f in check("index_select", "triton", case, dtype=torch.float32) if not f.holds] == []


def test_conforms_in_float16():
    assert [f for f in check("index_select", "triton", CASES[4], dtype=torch.float16) if not f.holds] == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_conforms_on_the_gpu(case, dtype):
    findings = check("index_select", "triton", case, dtype=dtype, device="cuda")
    assert [f for f in findings if not f.holds] == []


class Problem:
    """Sequences whose keys, their newest among them, are in scattered pages; all other entries are NaN."""

    def __init__(self, a, contexts, lengths, device="cpu", dtype=torch.float32, seed=0, draw=torch.randn, padding=0):
        generator = torch.Generator().manual_seed(seed)
        self.a, self.dtype = a, dtype

        def values(*shape):
            return draw(*shape, generator=generator).to(device, dtype)

        rows = sum(lengths) + padding
        totals = [c + n for c, n in zip(contexts, lengths, strict=True)]
        needed = [-(-n // PAGE_TOKENS) for n in totals]
        free = torch.randperm(sum(needed) + 2, generator=generator).tolist()
        pages = [[free.pop() for _ in range(n)] for n in needed]
        slots = list(range(len(lengths)))
        self.batch = Batch.pack(
            [[0] * n for n in lengths], context_lens=contexts, slots=slots, pages=pages, device=device
        )
        self.q = values(rows, a.heads * a.dim)
        self.weights = values(rows, a.heads) if a.score == "relu_weighted" else None
        if padding:
            self.q[-padding:] = float("nan")
        per_page = PAGE_TOKENS // a.pool
        self.keys = torch.full(((sum(needed) + 2) * per_page, a.dim), float("nan"), dtype=dtype, device=device)
        self.entries = []
        for s, total in enumerate(totals):
            page = torch.tensor(pages[s], dtype=torch.int64, device=device)
            candidate = torch.arange(total // a.pool, device=device)
            self.entries.append(page[candidate // per_page] * per_page + candidate % per_page)
            self.keys[self.entries[s]] = values(total // a.pool, a.dim)

    def choose(self, scores=SMALL, select=NARROW, **scales):
        rows = self.q.shape[0]
        steps = plan(self.a, self.batch, rows, self.q.dtype, self.q.device, scores=scores, select=select)
        scratch = workspace(steps, self.q.device).fill_(12345)
        guarded = torch.full((rows, self.a.width + 1), -7, dtype=torch.int64, device=self.q.device)
        out = guarded[:, :-1]
        flag = torch.zeros(1, dtype=torch.int32, device=self.q.device)
        choose(self.a, steps, self.q, self.keys, self.weights, out, flag, scratch, batch=self.batch, **scales)
        assert (guarded[:, -1] == -7).all()
        return out, bool(flag.item()), steps

    def wrong(self, out, q=None, keys=None):
        """What `misplaced` finds, all sequences together."""
        q, keys, found = self.q if q is None else q, self.keys if keys is None else keys, []
        for s, (first, end, _) in enumerate(self.batch.spans()):
            rows = slice(first, end)
            weights = None if self.weights is None else self.weights[rows]
            exact = None if weights is None else weights.double()
            mine, positions = keys[self.entries[s]], self.batch.positions[rows]
            scores, _ = index_scores(self.a, q[rows].double(), mine.double(), exact, positions)
            found += misplaced(self.a, out[rows], scores, score_error(self.a, q[rows], mine, weights), positions)
        return found

    def exact(self):
        """The reference's choice from the same keys."""
        rows = []
        for s, (first, end, _) in enumerate(self.batch.spans()):
            weights = None if self.weights is None else self.weights[first:end].cpu().double()
            positions = self.batch.positions[first:end].cpu()
            keys, q = self.keys[self.entries[s]].cpu().double(), self.q[first:end].cpu().double()
            scores, visible = index_scores(self.a, q, keys, weights, positions)
            rows.append(select(self.a, scores, visible, positions))
        return torch.cat(rows)


def integers(*shape, generator):
    return torch.randint(-1, 2, shape, generator=generator).float()


@EVERYWHERE
@pytest.mark.parametrize(
    "form,scratch,scores,lengths,splits,step",
    [
        (WIDE, 2**23, SMALL, [1, 1], 4, 2),
        (WIDE, 200, SMALL, [2, 1], 8, 1),
        (MEAN, 2**23, PAIRS, [3, 2], 2, 4),
        (MEAN | dict(budget=80), 400, PAIRS, [1, 3], 7, 1),
    ],
    ids=["split", "a row at a time", "rows together", "two rows at a time"],
)
def test_splits_and_steps_choose_the_same(device, dtype, form, scratch, scores, lengths, splits, step, monkeypatch):
    monkeypatch.setattr(triton_choose, "multiprocessors", lambda device: 8)
    monkeypatch.setattr(triton_choose, "SCRATCH", scratch)
    # A sample of so few says too little, unless it is nearly all: then the parts' bound is one that fits.
    monkeypatch.setattr(triton_choose, "SAMPLE_EVERY", 1)
    a = KIND.parse(form)
    problem = Problem(a, [100 * a.pool, 9], lengths, device, dtype, seed=splits)
    out, nan, steps = problem.choose(scores)
    assert (steps.splits, steps.step) == (splits, step)
    assert problem.wrong(out) == [] and not nan
    ties = Problem(a, [100 * a.pool, 9], lengths, device, dtype, seed=splits, draw=integers)
    want = ties.exact()
    for _ in range(2 if device == "cuda" else 1):
        assert torch.equal(ties.choose(scores)[0].cpu(), want)


@EVERYWHERE
def test_around_the_budget(device, dtype):
    a = KIND.parse(SUM | dict(budget=16))
    problem = Problem(a, [14, 15, 16, 0], [1, 1, 1, 1], device, dtype)
    out, _, _ = problem.choose()
    assert problem.wrong(out) == []
    assert [(row >= 0).sum().item() for row in out] == [15, 16, 16, 1]


@EVERYWHERE
@pytest.mark.parametrize("places", [[0, 1, 2], [40, 41, 60]])
def test_more_equal_scores_than_a_list_holds(device, dtype, places):
    a = KIND.parse(TOKEN)
    problem = Problem(a, [70], [1], device, dtype, draw=lambda *shape, generator: torch.ones(shape))
    problem.keys[problem.entries[0][places]] *= 2
    out, _, _ = problem.choose()
    others = [t for t in range(71) if t not in places][: a.budget - len(places)]
    assert out[0].tolist() == sorted([*places, *others])


@EVERYWHERE
def test_empty_sequences_and_padding(device, dtype):
    a = KIND.parse(TOKEN)
    for scores in (SMALL, PAIRS):
        problem = Problem(a, [5, 30, 0, 40], [0, 2, 0, 3], device, dtype, padding=3)
        out, nan, _ = problem.choose(scores)
        assert problem.wrong(out) == [] and not nan
        assert (out[-3:] == -1).all()


@EVERYWHERE
def test_nan_and_infinity(device, dtype):
    a = KIND.parse(TOKEN)
    problem = Problem(a, [70], [1], device, dtype, draw=integers)
    problem.q.abs_()
    problem.weights.fill_(1.0)
    problem.keys[problem.entries[0][40], 3] = float("inf")
    problem.q[:, 3 :: a.dim] = 1.0
    out, nan, _ = problem.choose()
    assert not nan and 40 in out[0].tolist()
    problem.weights[0, 0] = -1.0
    problem.q[0, a.dim + 3 :: a.dim] = 0.0
    for at, value in ((7, "nan"), (50, "nan")):
        problem.keys[problem.entries[0][at]] = float(value)
    out, nan, _ = problem.choose()
    assert nan and {7, 50} <= set(out[0].tolist())
    assert torch.equal(out.cpu(), problem.exact())
    # Behind the query nobody looks.
    problem = Problem(a, [70], [1], device, dtype)
    problem.batch.context_lens.fill_(60)
    problem.keys[problem.entries[0][61:]] = float("nan")
    assert not problem.choose()[1]


@EVERYWHERE
@pytest.mark.parametrize("form", ["e4m3", "int8"])
def test_quantised(device, dtype, form):
    a = KIND.parse(TOKEN | dict(dim=64))
    problem = Problem(a, [90], [1], device, dtype)
    for x in (problem.q, problem.keys):
        groups = x.unflatten(-1, (-1, 32))
        groups *= torch.exp2(torch.randint(-9, 10, (*groups.shape[:-1], 1), device=device)).to(dtype)
    entries = problem.entries[0]
    filled = torch.zeros_like(problem.keys)
    filled[entries] = problem.keys[entries]
    (q, q_scales), (keys, key_scales) = quantise(problem.q, form), quantise(filled, form)
    problem.q, problem.keys = q, keys
    out, _, _ = problem.choose(q_scales=q_scales, key_scales=key_scales)
    assert problem.wrong(out, dequantise(q, q_scales), dequantise(keys, key_scales)) == []


@EVERYWHERE
@pytest.mark.parametrize("form", ["e4m3", "int8"])
@pytest.mark.parametrize(
    ("dim", "block", "lengths"), [(32, 16, [1]), (128, 64, [1, 3]), (256, 128, [2])], ids=["32", "128", "256"]
)
def test_quantised_keys_of_any_width(device, dtype, form, dim, block, lengths):
    """One to eight groups a key; tiles within a page and over two; several queries; scales that nobody wrote."""
    problem = Problem(KIND.parse(TOKEN | dict(dim=dim)), [90, 70][: len(lengths)], lengths, device, dtype)
    entries = torch.cat(problem.entries)
    filled = torch.zeros_like(problem.keys)
    filled[entries] = problem.keys[entries]
    (q, q_scales), (keys, key_scales) = quantise(problem.q, form), quantise(filled, form)
    nobody = torch.ones(len(keys), dtype=torch.bool, device=device)
    nobody[entries] = False
    key_scales[nobody] = 255
    problem.q, problem.keys = q, keys
    scores = {"block": block, "warps": 4, "stages": 1, "waves": 1, "columns": 16 * max(lengths)}
    out, _, _ = problem.choose(scores=scores, q_scales=q_scales, key_scales=key_scales)
    assert problem.wrong(out, dequantise(q, q_scales), dequantise(keys, key_scales)) == []


@EVERYWHERE
def test_scales_that_make_up_for_each_other(device, dtype):
    """Products of large keys with small queries: neither alone is a number that float32 holds."""
    problem = Problem(KIND.parse(TOKEN | dict(dim=64)), [90], [1], device, dtype)
    entries = problem.entries[0]
    filled = torch.zeros_like(problem.keys)
    filled[entries] = problem.keys[entries]
    (q, q_scales), (keys, key_scales) = quantise(problem.q, "int8"), quantise(filled, "int8")
    problem.q, problem.keys = q, keys
    out, flag, _ = problem.choose(q_scales=q_scales, key_scales=key_scales)
    # Products of some 2^24 times a key's scale of more than 2^104 are infinite by themselves; no exponent wraps around.
    shift = int(q_scales.min()) - 1
    assert int(key_scales[entries].min()) + shift - 127 > 104 and int(key_scales[entries].max()) + shift < 255
    key_scales[entries] += shift
    far, far_flag, _ = problem.choose(q_scales=q_scales - shift, key_scales=key_scales)
    assert torch.equal(far, out) and not flag and not far_flag


def test_quantised_rows_begin_at_even_bytes():
    problem = Problem(KIND.parse(TOKEN | dict(dim=64)), [90], [1], "cpu", torch.float32)
    (q, q_scales), (keys, key_scales) = quantise(problem.q, "int8"), quantise(problem.keys.nan_to_num(0.0), "int8")
    problem.q, problem.keys = q, torch.zeros(len(keys), 65, dtype=torch.int8)[:, :64]
    with pytest.raises(ContractError, match="even bytes"):
        problem.choose(q_scales=q_scales, key_scales=key_scales)


def test_state_of_pools_with_norm_and_rotation_over_chunks(monkeypatch):
    # Which are chosen, other tests look at.
    monkeypatch.setattr(triton_fused, "choose", lambda *args, **options: None)
    turned = MEAN | dict(pooled_norm_eps=0.1, pooled_rotary_dim=16, pooled_rotary_theta=50.0)
    for form, long in ((turned, 62), (SOFTMAX, 6)):
        a = KIND.parse(form | dict(budget=68))
        lengths = [long + 8, 9]
        sequences = [
            tuple(
                None if width is None else torch.randn(n, width)
                for width in (
                    a.heads * a.dim,
                    a.dim,
                    a.heads if a.score == "relu_weighted" else None,
                    a.dim if a.pooling == "softmax" else None,
                )
            )
            for n in lengths
        ]
        weights = {n: torch.randn(w.shape) for n, w in KIND.weights(a).items()}
        sides = []
        for function in (index_select, fused):
            memory = PagedSequences(KIND.components(a), lengths, torch.float32)
            memory.run(partial(function, a, **weights, **memory.pools), sequences, [[long, 1, 3, 4], [3, 5, 0, 1]])
            sides.append([memory.state(s) for s in range(2)])
        for s in range(2):
            for name, want in sides[0][s].items():
                # a softmax or mean of four numbers, a norm and a rotation in float32: some ulps of size ~2
                assert (sides[1][s][name] - want).abs().max() < 1e-6


@triton.jit
def _entries_kernel(pages, out, stride, ENTRIES: tl.constexpr):
    number = tl.arange(0, 64)
    tl.store(out + number, entry_of(pages, number, number < 64, ENTRIES) * stride)


@EVERYWHERE
def test_offsets_beyond_32_bits(device, dtype):
    pages = torch.tensor([2**30, 3], dtype=torch.int64, device=device)
    out = torch.empty(64, dtype=torch.int64, device=device)
    _entries_kernel[(1,)](pages, out, 256, ENTRIES=32)
    number = torch.arange(64)
    assert torch.equal(out.cpu(), (pages.cpu()[number // 32] * 32 + number % 32) * 256)


@triton.jit
def _rows_kernel(cu_seqlens, sequences, out, R: tl.constexpr):
    block = tl.program_id(0)
    sequence = sequence_of(block, cu_seqlens, sequences, R)
    row = first_row(block, tl.load(cu_seqlens + sequence), sequence, R)
    tl.store(out + 2 * block, sequence.to(tl.int64))
    tl.store(out + 2 * block + 1, row)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.sampled_from([2, 4]))
def test_blocks_cover_every_row_once(lengths, rows):
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    blocks = starts[-1] // rows + len(lengths)
    out = torch.empty(blocks, 2, dtype=torch.int64)
    _rows_kernel[(blocks,)](torch.tensor(starts), len(lengths), out, R=rows)
    covered = [(s, row + i) for s, row in out.tolist() for i in range(rows) if starts[s] <= row + i < starts[s + 1]]
    assert sorted(covered) == [(s, r) for s, n in enumerate(lengths) for r in range(starts[s], starts[s] + n)]


@pytest.mark.gpu
def test_every_configuration_and_phase_gives_the_same_choice():
    a = KIND.parse(TOKEN | dict(heads=64, dim=128, budget=2048))
    for draw in (torch.randn, integers):
        one = Problem(a, [9000, 2047], [8, 8], "cuda", torch.bfloat16, draw=draw)
        outs = []
        for scores in triton_choose.SCORES.configs:
            outs += [one.choose(scores | {"columns": columns}, None)[0] for columns in (64, 128, 256)]
        for config in triton_choose.SELECT.configs:
            outs.append(one.choose(None, config)[0])
        assert all(torch.equal(out, outs[0]) for out in outs)
        assert one.wrong(outs[0]) == []
        if draw is integers:
            assert torch.equal(outs[0].cpu(), one.exact())


@pytest.mark.gpu
def test_a_launch_is_captured_and_replayed():
    a = KIND.parse(TOKEN | dict(heads=64, dim=128, budget=2048))
    problem = Problem(a, [9000], [1], "cuda", torch.bfloat16)
    want, _, steps = problem.choose(None, None)
    out, flag = torch.full_like(want, -7), torch.zeros(1, dtype=torch.int32, device="cuda")
    scratch = workspace(steps, out.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        choose(a, steps, problem.q, problem.keys, problem.weights, out, flag, scratch, batch=problem.batch)
    graph.replay()
    assert torch.equal(out, want)


def test_a_nan_is_told_once():
    a = KIND.parse(TOKEN | dict(budget=2))
    q, k, w = torch.randn(4, a.heads * a.dim), torch.randn(4, a.dim), torch.randn(4, a.heads)
    memory = PagedSequences(KIND.components(a), [4], torch.float32)
    run = partial(fused, a, **memory.pools)
    nan_seen("cpu")
    memory.run(run, [(q, k, w)], [[4]])
    assert not nan_seen("cpu")
    k[1] = float("nan")
    (out,) = memory.run(run, [(q, k, w)], [[4]])
    assert out[3].tolist()[0] in (0, 1) and 1 in out[3].tolist()
    assert nan_seen("cpu") and not nan_seen("cpu")


@pytest.mark.parametrize(
    "change,message",
    [
        (dict(dim=48), "dim in"),
        (dict(heads=129), "at most 128 heads"),
        (dict(budget=5000), "budget of at most 4096"),
    ],
)
def test_attributes_outside_the_contract_are_refused_before_a_launch(change, message):
    a = KIND.parse(TOKEN | change)
    problem = Problem(a, [5], [1])
    with pytest.raises(ContractError, match=message):
        problem.choose(None, None)
    (fact,) = change
    assert [r.clause for r in TRITON.refusals({"attribute": a.model_dump()})] == [fact]


def test_tensors_outside_the_contract_are_refused_before_a_launch():
    a = KIND.parse(TOKEN)
    for damage, message in (
        (dict(weights=None), "weights as score"),
        (dict(keys=torch.zeros(64, 32, dtype=torch.float64)), "keys in"),
        (dict(q=torch.zeros(1, 127)), "q of shape"),
    ):
        problem = Problem(a, [5], [1])
        vars(problem).update(damage)
        with pytest.raises(ContractError, match=message):
            problem.choose()
    with pytest.raises(ContractError, match="the pools keys, not tail_keys"):
        fused(a, problem.q, problem.q, tail_keys=problem.keys, batch=problem.batch)
    problem = Problem(a, [5], [1])
    out, flag = torch.empty(1, a.width, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    tensors = (problem.q, problem.keys, problem.weights, out, flag)
    steps = plan(a, problem.batch, 1, torch.float32, out.device)
    for damage, numbers, message in (
        (dict(list=a.budget), steps.scratch, "the plan of these attributes and this batch"),
        (dict(candidates=5), steps.scratch, "the plan of these attributes and this batch"),
        (dict(), steps.scratch - 1, "scratch of shape"),
    ):
        scratch = torch.empty(numbers, dtype=torch.int32)
        with pytest.raises(ContractError, match=message):
            choose(a, replace(steps, **damage), *tensors, scratch, batch=problem.batch)


def test_no_cpu_gets_it():
    facts = {"device": {"type": "cpu", "triton": False}}
    assert [r.clause for r in TRITON.refusals(facts)] == ["device", "triton"]
