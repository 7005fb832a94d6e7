"""linear: against the sum written out per element, in float64, and its parts, scale and cap."""

import math

import pytest
import torch

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.linear.reference import linear
from day0.kernels.registry import get_kind, resolve

KIND = get_kind("linear")
# float64 sums of 5 products of size ~1, scaled by at most 2: a few ulp of 2.2e-16, times the length.
TOLERANCE = 1e-14


def draw(a, dtype=torch.float64, tokens=7):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, a.in_features, dtype=torch.float64, generator=generator)
    owned = {n: torch.randn(w.shape, dtype=torch.float64, generator=generator) for n, w in KIND.weights(a).items()}
    return x.to(dtype), {n: w.to(dtype) for n, w in owned.items()}


def plain(a, x, weight, bias=None):
    """One element at a time, with Python floats."""
    out = torch.empty(x.shape[0], a.out_features, dtype=torch.float64)
    for n in range(x.shape[0]):
        for o in range(a.out_features):
            y = sum(float(x[n, i]) * float(weight[o, i]) for i in range(a.in_features))
            y = (y + (0.0 if bias is None else float(bias[o]))) * a.scale
            out[n, o] = a.softcap * math.tanh(y / a.softcap) if a.softcap else y
    return out


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.0, 2.0])
@pytest.mark.parametrize("softcap", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("float32", [False, True])
def test_formula(bias, scale, softcap, float32):
    a = KIND.parse(dict(in_features=5, out_features=6, bias=bias, scale=scale, softcap=softcap, float32=float32))
    x, owned = draw(a)
    got = resolve("linear", "torch")(a, x, **owned)
    assert got.dtype == torch.float64
    assert (got - plain(a, x, **owned)).abs().max() < TOLERANCE


def test_scale_and_cap_are_off_by_default():
    a = KIND.parse(dict(in_features=5, out_features=6))
    x, owned = draw(a)
    assert (a.scale, a.softcap, a.split, a.bias, a.float32) == (1.0, 0.0, (), False, False)
    assert (linear(a, x, **owned) - plain(a, x, **owned)).abs().max() < TOLERANCE


def test_the_split_hands_on_consecutive_parts():
    whole, cut = (KIND.parse(dict(in_features=5, out_features=6, bias=True, split=s)) for s in ((), [1, 3, 2]))
    x, owned = draw(whole)
    y = linear(whole, x, **owned)
    for part, columns in zip(linear(cut, x, **owned), (y[:, :1], y[:, 1:4], y[:, 4:]), strict=True):
        assert torch.equal(part, columns)
    assert KIND.methods[""].output_names(cut) == ("y0", "y1", "y2")
    assert KIND.methods[""].output_names(whole) == ("y",)


def test_the_product_runs_and_ends_in_the_dtype_of_the_activations():
    a = KIND.parse(dict(in_features=64, out_features=9, bias=True))
    x, owned = draw(a, torch.bfloat16)
    assert linear(a, x, **owned).dtype == torch.bfloat16


def test_float32_keeps_what_the_activation_dtype_would_round_away():
    a = KIND.parse(dict(in_features=64, out_features=9, bias=True, float32=True))
    x, owned = draw(a, torch.bfloat16)
    y = linear(a, x, **owned)
    want = plain(a, x, **owned)
    assert y.dtype == torch.float32
    # 64 products of bf16 numbers of size <= 4, each exact in float32, and as many float32 roundings of a sum below 128
    assert (y.double() - want).abs().max() < 64 * 128 * 2**-24
    assert (linear(a, x.double(), **{n: w.double() for n, w in owned.items()}) - want).abs().max() < 1e-12


def test_it_owns_a_weight_and_perhaps_a_bias():
    without, owning = (KIND.parse(dict(in_features=5, out_features=6, bias=b)) for b in (False, True))
    assert {n: (w.shape, w.dtype) for n, w in KIND.weights(without).items()} == {"weight": ((6, 5), "activation")}
    assert {n: w.shape for n, w in KIND.weights(owning).items()} == {"weight": (6, 5), "bias": (6,)}
    assert KIND.components(owning) == ()


def test_cost_reads_the_weight_once_a_step():
    a = KIND.parse(dict(in_features=5, out_features=6, bias=True))
    work = Work("decode", tokens=3, sequences=3, context=100, activation_bytes=4, weight_bytes=2)
    assert KIND.cost(a, work) == Cost(flops=2 * 3 * 30, bytes_read=(30 + 6) * 2 + 3 * 5 * 4, bytes_written=3 * 6 * 4)
    one, two = (
        KIND.cost(a, Work("prefill", tokens=n, sequences=1, context=0, activation_bytes=4, weight_bytes=2))
        for n in (1, 2)
    )
    assert (two.flops, two.bytes_written) == (2 * one.flops, 2 * one.bytes_written)
    assert two.bytes_read - one.bytes_read == 5 * 4


def test_contract_refuses_what_cannot_be():
    contract = KIND.implementation("torch").contract
    bad = {"attribute": {"in_features": 0, "out_features": 0}, "dtype": {"activation": "int8"}}
    assert [r.clause for r in contract.refusals(bad)] == ["in_features", "out_features", "dtype"]
    good = {"attribute": {"in_features": 1, "out_features": 1}, "dtype": {"activation": "float16"}}
    assert contract.refusals(good) == []


@pytest.mark.parametrize("split", [(2, 3), (2, 5), (0, 6), (-1, 7)])
def test_a_split_that_does_not_make_up_the_output_is_refused(split):
    with pytest.raises(ValueError, match="split"):
        KIND.parse(dict(in_features=5, out_features=6, split=split))


def test_parse_refuses():
    with pytest.raises(ValueError, match="softcap"):
        KIND.parse(dict(in_features=5, out_features=6, softcap=-1.0))
    with pytest.raises(ValueError, match="features"):
        KIND.parse(dict(in_features=5, out_features=6, features=3))
    with pytest.raises(ValueError, match="out_features"):
        KIND.parse(dict(in_features=5))


def test_alternatives_parse():
    base = dict(in_features=5, out_features=6)
    for name, values in KIND.attributes.alternatives().items():
        for value in values:
            assert getattr(KIND.parse(base | {name: value}), name) == value
