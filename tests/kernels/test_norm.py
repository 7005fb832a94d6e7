"""norm: against the formula written out per element, in float64."""

import math

import pytest
import torch

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
        dict(dim=3, eps=1e-2, form=form, weight=weight, gate=gate, gate_order=order, groups=groups, bias=bias, cast=cast)
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


def test_unknown_attribute_is_refused():
    with pytest.raises(ValueError, match="epsilon"):
        KIND.parse(dict(dim=4, eps=1e-5, epsilon=1e-6))
