"""norm: against the formula written out per element, in float64."""

import importlib
import math

import pytest
import torch

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.norm.reference import norm
from day0.kernels.registry import get_kind

KIND = get_kind("norm")
# float64 sums of at most 16 terms of size ~1: a few ulp of 2.2e-16, times the length.
TOLERANCE = 1e-13


def plain(a, x, gate, weight, bias):
    """One channel at a time, with Python floats."""
    act = {"none": lambda z: 1.0, "silu": lambda z: z / (1 + math.exp(-z)), "sigmoid": lambda z: 1 / (1 + math.exp(-z))}
    out = torch.empty_like(x)
    for n in range(x.shape[0]):
        for start in range(0, x.shape[1], a.dim):
            v = [float(x[n, start + i]) for i in range(a.dim)]
            z = [act[a.gate](float(gate[n, start + i])) if gate is not None else 1.0 for i in range(a.dim)]
            if a.gate_order == "before_norm":
                v = [p * q for p, q in zip(v, z, strict=True)]
            if a.form == "layer":
                mean = sum(v) / a.dim
                v = [p - mean for p in v]
            root = math.sqrt(sum(p * p for p in v) / a.dim + a.eps)
            for i in range(a.dim):
                j = (start + i) % (a.groups * a.dim)
                y = v[i] / root
                if a.weight != "none":
                    y *= float(weight[j]) + (1.0 if a.weight == "one_plus" else 0.0)
                if a.bias:
                    y += float(bias[j])
                if a.gate_order == "after_norm":
                    y *= z[i]
                out[n, start + i] = y
    return out


@pytest.mark.parametrize("form", ["rms", "layer"])
@pytest.mark.parametrize("weight", ["none", "plain", "one_plus"])
@pytest.mark.parametrize("gate", ["none", "silu", "sigmoid"])
@pytest.mark.parametrize("order", ["after_norm", "before_norm"])
@pytest.mark.parametrize("groups,bias,cast", [(1, False, "before_weight"), (2, True, "after_weight")])
def test_formula(form, weight, gate, order, groups, bias, cast):
    a = KIND.parse(
        dict(
            dim=3, eps=1e-2, form=form, weight=weight, gate=gate, gate_order=order, groups=groups, bias=bias, cast=cast
        )
    )
    generator = torch.Generator().manual_seed(1)
    x, z = torch.randn(2, 5, 12, dtype=torch.float64, generator=generator).unbind()
    owned = {n: torch.randn(w.shape, dtype=torch.float64, generator=generator) for n, w in KIND.weights(a).items()}
    got = norm(a, x, z if gate != "none" else None, **owned)
    want = plain(a, x, z if gate != "none" else None, owned.get("weight"), owned.get("bias"))
    assert (got - want).abs().max() < TOLERANCE


def test_inner_arithmetic_is_float32_and_result_keeps_the_dtype():
    a = KIND.parse(dict(dim=64, eps=1e-5, cast="after_weight"))
    x, w = torch.randn(7, 64).bfloat16(), torch.randn(64).bfloat16()
    got = norm(a, x, weight=w)
    want = norm(a, x.double(), weight=w.double())
    assert got.dtype == torch.bfloat16
    # one rounding to bf16 at the end: half an ulp of an 8-bit significand, 2^-8 of the value
    assert ((got.double() - want).abs() <= want.abs() * 2**-8 + 1e-12).all()


# (transformers module, class, its arguments beside eps) -> attributes; 12 channels in groups of `dim`.
FAMILIES = [
    (("glm5_next", "Glm5NextTextRMSNorm", {}), dict(dim=12)),
    (("olmo_hybrid", "OlmoHybridRMSNorm", {}), dict(dim=12, cast="after_weight")),
    (("qwen3_next", "Qwen3NextRMSNorm", {}), dict(dim=12, weight="one_plus", cast="after_weight")),
    (
        ("qwen4_exp", "Qwen4ExpTextRMSNorm", {"group_size": 4}),
        dict(dim=4, groups=3, weight="one_plus", cast="after_weight"),
    ),
    (("kimi_linear", "KimiLinearRMSNormGated", {}), dict(dim=12, cast="after_weight", gate="sigmoid")),
    (("qwen3_next", "Qwen3NextRMSNormGated", {}), dict(dim=12, gate="silu")),
]


@pytest.mark.parametrize("theirs,attributes", FAMILIES, ids=[theirs[1] for theirs, _ in FAMILIES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounds_where_the_family_s_module_rounds(theirs, attributes, dtype):
    """The same operations in the same order: equal to the bit, in bfloat16 too."""
    family, name, arguments = theirs
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    module = getattr(modeling, name)(12, eps=1e-3, **arguments).to(dtype)
    torch.nn.init.normal_(module.weight)
    x, z = torch.randn(2, 50, 12).to(dtype).unbind()
    a = KIND.parse(dict(eps=1e-3) | attributes)
    gate = () if a.gate == "none" else (z,)
    with torch.no_grad():
        assert torch.equal(norm(a, x, *gate, weight=module.weight), module(x, *gate))


def test_before_weight_the_bias_is_added_in_the_activation_dtype():
    """torch's layer_norm in float32, rounded to bfloat16, then product and sum in bfloat16."""
    a = KIND.parse(dict(dim=12, eps=1e-3, form="layer", bias=True))
    x = torch.randn(50, 12).bfloat16()
    weight, bias = torch.randn(2, 12).bfloat16().unbind()
    normed = torch.nn.functional.layer_norm(x.double(), (12,), eps=1e-3)
    want = normed * weight.double() + bias.double()
    got = norm(a, x, weight=weight, bias=bias)
    # three roundings to bf16, each at most 2^-8 of a number no larger than the two terms together
    bound = 3 * 2**-8 * ((normed * weight.double()).abs() + bias.double().abs())
    assert got.dtype == torch.bfloat16 and ((got.double() - want).abs() <= bound).all()


def test_axes_in_the_middle_are_kept():
    a = KIND.parse(dict(dim=4, eps=1e-3))
    x, weight = torch.randn(5, 3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    got = norm(a, x, weight=weight)
    assert torch.equal(got, norm(a, x.flatten(0, 1), weight=weight).view(5, 3, 4))


@pytest.mark.parametrize("gate,given,message", [("none", True, "takes no port"), ("silu", False, "needs the port")])
def test_a_gate_that_the_attributes_do_not_say_is_refused(gate, given, message):
    a = KIND.parse(dict(dim=4, eps=1e-3, weight="none", gate=gate))
    x = torch.randn(5, 4)
    with pytest.raises(ValueError, match=message):
        norm(a, x, x if given else None)


def test_weights_stand_once_for_all_groups():
    a = KIND.parse(dict(dim=4, eps=1e-3, groups=3, bias=True))
    assert {n: w.shape for n, w in KIND.weights(a).items()} == {"weight": (12,), "bias": (12,)}
    assert KIND.weights(KIND.parse(dict(dim=4, eps=1e-3, weight="none"))) == {}


def test_alternatives_parse():
    base = dict(dim=4, eps=1e-3, gate="silu")
    for name, values in KIND.attributes.alternatives().items():
        for value in values:
            assert getattr(KIND.parse(base | {name: value}), name) == value


def test_cost_passes_once_over_the_ports():
    work = Work("decode", tokens=7, sequences=7, context=100, activation_bytes=2, weight_bytes=4)
    plain = KIND.parse(dict(dim=4, eps=1e-3, groups=3, bias=True))
    assert KIND.cost(plain, work) == Cost(7 * 12 * 4, 7 * 12 * 2 + 2 * 12 * 4, 7 * 12 * 2)
    gated = KIND.parse(dict(dim=4, eps=1e-3, weight="none", gate="silu"))
    assert KIND.cost(gated, work) == Cost(7 * 4 * 9, 2 * 7 * 4 * 2, 7 * 4 * 2)


def test_contract_refuses_what_cannot_be():
    contract = KIND.implementation("torch").contract
    bad = {"attribute": {"dim": 0, "eps": -1e-6}, "dtype": {"activation": "int8"}}
    assert [r.clause for r in contract.refusals(bad)] == ["dim", "eps", "dtype"]
    good = {"attribute": {"dim": 1, "eps": 0.0}, "dtype": {"activation": "bfloat16"}}
    assert contract.refusals(good) == []


def test_unknown_attribute_is_refused():
    with pytest.raises(ValueError, match="epsilon"):
        KIND.parse(dict(dim=4, eps=1e-5, epsilon=1e-6))
