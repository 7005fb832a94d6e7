"""linear/triton against float64: the cases of the contract, every configuration, wider rows, what is not finite; and
that it is PyTorch's product where that is faster."""

import pytest
import torch

from day0.kernels.common.conformance import check, relative_l2
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.linear import triton_fused
from day0.kernels.linear.contract import FEW_ROWS, TRITON
from day0.kernels.linear.schema import LinearAttributes
from day0.kernels.linear.triton_cases import CASES
from day0.kernels.linear.triton_product import MATRIX, VECTOR, product, workspace

# bfloat16 products are wrong where they are interpreted.
ON = [
    pytest.param("cpu", torch.float16, id="cpu"),
    pytest.param("cuda", torch.float16, id="cuda-float16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=pytest.mark.gpu),
]


def run(x, weight, config, wide=0, **more):
    tokens, rows = x.shape[0], weight.shape[0]
    out = torch.full((tokens, rows + wide), float("nan"), dtype=x.dtype, device=x.device)
    scratch = torch.full((workspace(tokens, rows, config),), float("nan"), device=x.device)
    product(x, weight, out[:, :rows], config=config, scratch=scratch, **more)
    assert out[:, rows:].isnan().all()
    return out[:, :rows]


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case, device, dtype):
    findings = check("linear", "triton", case, dtype=dtype, device=device)
    assert findings and [f for f in findings if not f.holds] == []


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize(
    ("tokens", "config"),
    [(1, c) for c in VECTOR.configs] + [(t, c) for t in (2, 19, 64) for c in MATRIX.configs],
    ids=str,
)
def test_every_configuration_gives_the_same_product(tokens, config, device, dtype):
    """More columns than two splits of one tile hold; views into wider rows; scratch that held NaN; twice the same."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, 4 * 256 + 75, generator=g).to(device, dtype)[:, 3:-2]
    weight = torch.randn(70, 4 * 256 + 75, generator=g).to(device, dtype)[:, 1:-4]
    bias = torch.randn(70, generator=g).to(device, dtype)
    out = run(x, weight, config, wide=5, bias=bias, scale=0.5)
    exact = 0.5 * (x.double() @ weight.double().T + bias.double())
    # One rounding of the result, the rest is added up in float32.
    assert relative_l2(out, exact) <= torch.finfo(dtype).eps / 2
    assert torch.equal(run(x, weight, config, bias=bias, scale=0.5), out)


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize(("tokens", "packed"), [(0, True), (1, True), (FEW_ROWS, True), (FEW_ROWS + 1, False)])
def test_the_packed_product_is_of_few_rows(monkeypatch, tokens, packed, device, dtype):
    calls = []

    def counted(x, *args, **more):
        calls.append(len(x))
        product(x, *args, **more)

    monkeypatch.setattr(triton_fused, "product", counted)
    a = LinearAttributes(in_features=40, out_features=33)
    x, weight = torch.ones(tokens, 40, device=device, dtype=dtype), torch.ones(33, 40, device=device, dtype=dtype)
    y = triton_fused.linear(a, x, weight=weight)
    assert y.shape == (tokens, 33) and (y == 40).all() and calls == ([tokens] if packed else [])


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("tokens", [1, 2])
def test_what_is_not_finite_stays_in_its_row(tokens, device, dtype):
    x, weight = torch.ones(tokens, 24, dtype=dtype), torch.ones(20, 24, dtype=dtype)
    x[-1, 3], weight[7, 5], weight[8, 5] = float("inf"), float("nan"), float("-inf")
    out = run(x.to(device), weight.to(device), (VECTOR if tokens == 1 else MATRIX).configs[0]).cpu()
    exact = x.double() @ weight.double().T
    assert torch.equal(out.isnan(), exact.isnan()) and torch.equal(out.isinf(), exact.isinf())
    assert torch.equal(out.nan_to_num(), exact.to(dtype).nan_to_num())


@pytest.mark.gpu
def test_rows_past_two_gigabytes_of_weight():
    """Offsets pass 2^31 elements in the last rows."""
    weight = torch.zeros(2**31 // 4096 + 8, 4096, dtype=torch.bfloat16, device="cuda")
    weight[-1] = 1.0
    for tokens in (1, 2):
        out = run(
            torch.ones(tokens, 4096, dtype=torch.bfloat16, device="cuda"),
            weight,
            (VECTOR, MATRIX)[tokens - 1].configs[0],
        )
        assert (out[:, -1] == 4096).all() and (out[:, :-1] == 0).all()


def test_refusals_come_before_the_launch():
    x, weight, out = torch.ones(2, 24).half(), torch.ones(20, 24).half(), torch.full((2, 20), 7.0).half()
    for changes, message in (
        ({"x": x.float()}, "x in"),
        ({"x": torch.ones(65, 24).half()}, "at most 64 tokens"),
        ({"weight": weight.float()}, "weight in"),
        ({"weight": weight[:, 1:]}, "weight of shape"),
        ({"weight": torch.ones(24, 20).half().T}, "weight with its last axis"),
        ({"out": out[:, 1:]}, "out of shape"),
        ({"bias": torch.ones(19).half()}, "bias of shape"),
        ({"config": MATRIX.configs[1]}, "scratch of 80 numbers"),
        ({"config": MATRIX.configs[1], "scratch": torch.ones(79)}, "scratch of 80 numbers"),
    ):
        given = {"x": x, "weight": weight, "out": out, "config": MATRIX.configs[0]} | changes
        with pytest.raises(ContractError, match=message):
            product(given.pop("x"), given.pop("weight"), given.pop("out"), **given)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("subject", "name", "value", "taken"),
    [
        ("phase", "phase", "prefill", False),
        ("phase", "phase", "verify", True),
        ("shape", "tokens_per_sequence", 8, True),
        ("shape", "tokens_per_sequence", 9, False),
        ("attribute", "softcap", 30.0, False),
        ("attribute", "float32", True, False),
        ("dtype", "activation", "float32", False),
        ("device", "type", "cpu", False),
    ],
)
def test_contract(subject, name, value, taken):
    facts = {
        "attribute": {"in_features": 8, "out_features": 8, "softcap": 0.0, "float32": False},
        "phase": {"phase": "decode"},
        "shape": {"tokens_per_sequence": 1},
        "dtype": {"activation": "bfloat16"},
        "device": {"type": "cuda", "triton": True},
    }
    assert TRITON.refusals(facts) == []
    facts[subject] = facts[subject] | {name: value}
    assert (TRITON.refusals(facts) == []) is taken
