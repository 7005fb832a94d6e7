"""norm/triton against float64: the cases of the contract, the fused residual sum, wider rows, refusals."""

import pytest
import torch

from day0.kernels.common.conformance import check
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.norm.reference import norm as reference
from day0.kernels.norm.schema import NormAttributes
from day0.kernels.norm.triton_cases import CASES
from day0.kernels.norm.triton_fused import norm
from day0.kernels.norm.triton_norm import normalise

ON = [
    pytest.param("cpu", torch.float32, id="cpu-float32"),
    pytest.param("cpu", torch.float16, id="cpu-float16"),
    pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float32, id="cuda-float32", marks=pytest.mark.gpu),
]
PLAIN = NormAttributes(dim=40, eps=1e-6)


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case, device, dtype):
    findings = check("norm", "triton", case, dtype=dtype, device=device)
    assert findings and [f for f in findings if not f.holds] == []


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_residual_sum_in_front(device, dtype):
    x, r = (torch.randn(7, 80, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(40, device=device).to(dtype)
    out, total = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
    normalise(PLAIN, x, None, weight=weight, bias=None, out=out, residual=r, total=total)
    assert torch.equal(total, x + r)
    # Another kernel, whose sum of 40 squares may go in another order: 40 roundings at most, of which the root takes
    # half, and three of its own; and the result's.
    bound = 23 * 2.0**-24 + torch.finfo(dtype).eps
    torch.testing.assert_close(out, norm(PLAIN, total, weight=weight), rtol=bound, atol=0)
    normalise(PLAIN, x, None, weight=weight, bias=None, out=x, residual=r, total=r)
    assert torch.equal(r, total) and torch.equal(x, out)


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_wider_rows_are_read_in_place(device, dtype):
    wide = torch.full((6, 200), float("nan"), dtype=dtype, device=device)
    view = wide[:, 24:104]
    view.copy_(torch.randn(6, 80))
    weight = torch.randn(40, device=device).to(dtype)
    assert torch.equal(norm(PLAIN, view, weight=weight), norm(PLAIN, view.contiguous(), weight=weight))
    assert norm(PLAIN, view.view(3, 2, 80), weight=weight).shape == (3, 2, 80)
    assert norm(PLAIN, view[:0], weight=weight).shape == (0, 80)


def test_nan_and_infinity_stay_in_their_group():
    x = torch.randn(4, 80)
    x[1, 3] = float("nan")
    x[2, 45] = float("inf")
    got, want = norm(PLAIN, x, weight=torch.ones(40)), reference(PLAIN, x, weight=torch.ones(40))
    torch.testing.assert_close(got, want, equal_nan=True)


def test_refusals_come_before_the_launch():
    x, w = torch.randn(4, 80), torch.ones(40)
    with pytest.raises(ContractError, match="multiple of 40 channels, not 81"):
        norm(PLAIN, torch.randn(4, 81), weight=w)
    with pytest.raises(ContractError, match="a gate exactly where"):
        norm(PLAIN, x, x, weight=w)
    with pytest.raises(ContractError, match="a weight exactly where"):
        norm(PLAIN, x)
    with pytest.raises(ContractError, match="x in"):
        norm(PLAIN, x.double(), weight=w)
    with pytest.raises(ContractError, match="both `residual` and `total`"):
        normalise(PLAIN, x, None, weight=w, bias=None, out=x, residual=x)
