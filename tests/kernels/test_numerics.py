"""The precision rules that references share: what is upcast, and the activations by their config names."""

import math

import pytest
import torch

from day0.kernels.common.numerics import activation, upcast

FORMULAS = {
    "silu": lambda z: z / (1 + math.exp(-z)),
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "relu": lambda z: max(z, 0.0),
    "relu2": lambda z: max(z, 0.0) ** 2,
    "gelu_tanh": lambda z: 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "none": lambda z: z,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_only_float64_is_wider_than_float32(dtype):
    x = torch.randn(5).to(dtype)
    assert upcast(x).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(upcast(x).to(dtype), x)


@pytest.mark.parametrize("name", FORMULAS)
def test_activation(name):
    x = torch.cat((torch.randn(20, dtype=torch.float64) * 3, torch.zeros(1, dtype=torch.float64)))
    want = torch.tensor([FORMULAS[name](z) for z in x.tolist()], dtype=torch.float64)
    # a handful of float64 operations on values below 100
    assert (activation(name, x) - want).abs().max() < 1e-13


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="unknown activation 'gelu'"):
        activation("gelu", torch.zeros(1))
