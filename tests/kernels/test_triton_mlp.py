"""mlp/triton against float64: the cases of the contract, NaN through the clamps, wider rows, refusals."""

import pytest
import torch

from day0.kernels.common.conformance import check
from day0.kernels.common.numerics import activation
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.mlp.triton_activation import FORMS, activate
from day0.kernels.mlp.triton_cases import CASES

ON = [
    pytest.param("cpu", torch.float32, id="cpu-float32"),
    pytest.param("cpu", torch.float16, id="cpu-float16"),
    pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float32, id="cuda-float32", marks=pytest.mark.gpu),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case, device, dtype):
    findings = check("mlp", "triton", case, dtype=dtype, device=device)
    assert findings and [f for f in findings if not f.holds] == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clamp", [0.0, 1.0])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_passes_as_in_the_reference(form, clamp, device):
    nan, inf = float("nan"), float("inf")
    odd = torch.tensor([nan, inf, -inf, 0.0, -0.0, 3.0, -3.0, 1e30, -1e30])
    inner = torch.cat((odd.repeat(9), odd.repeat_interleave(9)))[None].to(device)
    out = torch.full((1, 81), nan, device=device)
    activate(inner, form=form, gated=True, clamp=clamp, out=out)
    gate, value = inner.cpu().chunk(2, dim=-1)
    if clamp:
        gate, value = gate.clamp(max=clamp), value.clamp(min=-clamp, max=clamp)
    torch.testing.assert_close(out.cpu(), activation(form, gate.double()).float() * value, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_wider_rows_and_no_tokens(device):
    wide = torch.full((5, 90), float("nan"), device=device)
    view = wide[:, 8:88]
    view.copy_(torch.randn(5, 80))
    outs = [torch.full((5, 48), float("nan"), device=device) for _ in range(2)]
    for inner, out in zip((view, view.contiguous()), outs, strict=True):
        activate(inner, form="silu", gated=True, clamp=0.5, out=out[:, 4:44])
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=0, equal_nan=True)
    assert outs[0].isnan().sum() == 5 * 8
    activate(view[:0], form="silu", gated=True, clamp=0.5, out=outs[0][:0, 4:44])


def test_refusals_come_before_the_launch():
    inner, out = torch.randn(4, 80), torch.empty(4, 40)
    for changes, message in (
        ({"form": "tanh"}, "an activation out of"),
        ({"gated": False}, r"shape \[4, 40\]"),
        ({"inner": inner.double()}, "the first product in"),
        ({"inner": torch.randn(80, 4).T}, "last axis contiguous"),
        ({"inner": inner[:, :40], "gated": False, "clamp": 1.0}, "a gate where there is a clamp"),
    ):
        arguments = {"inner": inner, "form": "silu", "gated": True, "clamp": 0.0, "out": out} | changes
        with pytest.raises(ContractError, match=message):
            activate(arguments.pop("inner"), **arguments)
