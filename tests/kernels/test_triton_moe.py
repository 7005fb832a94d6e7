"""Fused moe: every edge against float64; the router's lists; the order that nothing may change."""

import pytest
import torch

from day0.errors import Day0Error
from day0.kernels.common.conformance import check
from day0.kernels.moe.reference import route as route_plainly
from day0.kernels.moe.schema import MoeAttributes
from day0.kernels.moe.triton_cases import CASES, weights
from day0.kernels.moe.triton_experts import block_of
from day0.kernels.moe.triton_fused import moe
from day0.kernels.moe.triton_route import Routing, route

ROUTER = dict(width=16, hidden=8, experts=6, top_k=2, scores="softmax")


def routing(a, x, router, bias=None, block=16):
    into = Routing.allocate(a, x.shape[0], block, x.device)
    for field in vars(into).values():  # what was there before must not matter
        if isinstance(field, torch.Tensor):
            field.fill_(-7)
    route(a, x, router, bias, into)
    return into


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_against_float64(case, dtype):
    found = check("moe", "triton", case, dtype=dtype)
    assert all(f.holds for f in found), found


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_against_float64_on_the_gpu(case, seed):
    found = check("moe", "triton", case, dtype=torch.bfloat16, device="cuda", seed=seed)
    assert all(f.holds for f in found), found


def test_no_tokens():
    a = MoeAttributes(**ROUTER)
    owned = {n: w.float() for n, w in weights(a, torch.Generator().manual_seed(0)).items()}
    assert moe(a, torch.empty(0, 16), **owned).shape == (0, 16)


@pytest.mark.parametrize("groups", [1, 3])
def test_equal_scores_take_experts_in_order(groups):
    a = MoeAttributes(**ROUTER | dict(groups=groups, groups_kept=max(1, groups - 1)))
    x = torch.ones(3, 16)
    into = routing(a, x, torch.zeros(6, 16))
    assert into.experts.tolist() == [[0, 1]] * 3 == route_plainly(a, x, torch.zeros(6, 16))[0].tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_token_stays_alone(bad):
    a = MoeAttributes(**ROUTER)
    owned = {n: w.float() for n, w in weights(a, torch.Generator().manual_seed(0)).items()}
    x = torch.randn(4, 16)
    expected = moe(a, x, **owned)
    x[2, 3] = bad
    y = moe(a, x, **owned)
    assert not y[2].isfinite().all()
    others = [0, 1, 3]
    assert torch.equal(y[others], expected[others])


def test_every_choice_has_one_row_and_blocks_cover_them_once():
    a = MoeAttributes(**ROUTER | dict(experts=5))
    x, router = torch.randn(70, 16), torch.randn(5, 16)
    into = routing(a, x, router)
    ids = route_plainly(a, x, router)[0].sort(dim=1).values
    assert torch.equal(into.experts.long(), ids)
    assert torch.equal(into.sorted_choices.long(), ids.flatten().sort(stable=True).indices)
    assert torch.equal(into.sorted_choices[into.row_of.long()].long(), torch.arange(140))
    spans = zip(into.block_expert.tolist(), into.block_start.tolist(), into.block_end.tolist(), strict=True)
    rows = [(expert, row) for expert, start, end in spans for row in range(start, end)]
    flat = ids.flatten()[into.sorted_choices.long()].tolist()
    assert rows == [(expert, row) for row, expert in enumerate(flat)]
    assert all(end - start <= 16 for start, end in zip(into.block_start, into.block_end, strict=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_token_gets_the_same_from_any_batch(device):
    a = MoeAttributes(**ROUTER)
    generator = torch.Generator().manual_seed(0)
    owned = {n: w.float().to(device) for n, w in weights(a, generator).items()}
    x = torch.randn(40, 16, generator=generator).to(device)
    whole = moe(a, x, **owned)
    assert torch.equal(moe(a, x.clone(), **owned), whole)
    alone = moe(a, x[7:8].contiguous(), **owned)
    if device == "cuda":
        assert torch.equal(alone, whole[7:8])
    else:
        # numpy, which multiplies for the interpreter, sums a row in an order that depends on where the row stands: both
        # orders are within (terms - 1) 2^-24 of the sum of sizes, of at most 16 terms in each product.
        assert (alone - whole[7:8]).abs().max() <= 2 * 2 * 16 * 2.0**-24 * whole.abs().max()


@pytest.mark.parametrize(
    ("change", "needs"),
    [
        ({"x": torch.empty(3, 15)}, "x of shape"),
        ({"x": torch.empty(16, 3).T}, "x with its last axis contiguous"),
        ({"router": torch.empty(6, 16, dtype=torch.float16)}, "router in"),
        ({"bias": torch.empty(6)}, "router_bias where"),
        ({"tokens": 4}, "scratch for 3 tokens"),
    ],
)
def test_refused_before_anything_runs(change, needs):
    a = MoeAttributes(**ROUTER)
    x, router = change.get("x", torch.randn(3, 16)), change.get("router", torch.randn(6, 16))
    into = Routing.allocate(a, change.get("tokens", 3), 16, "cpu")
    into.experts.fill_(-7)
    with pytest.raises(Day0Error, match=needs):
        route(a, x, router, change.get("bias"), into)
    assert (into.experts == -7).all()


def test_blocks_follow_the_load():
    a = MoeAttributes(**ROUTER | dict(experts=288, top_k=8))
    assert [block_of(a, n) for n in (1, 64, 1024, 4096, 100_000)] == [16, 16, 32, 128, 128]
