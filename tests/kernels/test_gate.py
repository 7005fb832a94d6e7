"""gate: against the formula per element, and against the gates of transformers' attention modules."""

import math

import pytest
import torch

from day0.kernels.gate.reference import gate
from day0.kernels.interface.kind import Cost, Work
from day0.kernels.registry import get_kind

KIND = get_kind("gate")
# a handful of float64 operations on values of size ~1: a few ulp of 2.2e-16
TOLERANCE = 1e-14


def gelu_tanh(z):
    return 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


ACTIVATIONS = {
    "none": lambda z: z,
    "sigmoid": lambda z: 1 / (1 + math.exp(-z)),
    "silu": lambda z: z / (1 + math.exp(-z)),
    "gelu_tanh": gelu_tanh,
}


def draw(a, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, a.channels, dtype=torch.float64, generator=generator)
    z = torch.randn(5, a.gate_channels, dtype=torch.float64, generator=generator) * 3
    return x.to(dtype), z.to(dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("heads", [None, 1, 2, 6])
def test_formula(activation, heads):
    a = KIND.parse(dict(channels=6, activation=activation, heads=heads))
    x, z = draw(a)
    y = gate(a, x, z)
    for n in range(5):
        for c in range(6):
            g = float(z[n, c if heads is None else c // (6 // heads)])
            assert abs(float(y[n, c]) - float(x[n, c]) * ACTIVATIONS[activation](g)) < TOLERANCE


def test_inner_arithmetic_is_float32_and_result_keeps_the_dtype():
    a = KIND.parse(dict(channels=64, activation="sigmoid", heads=4))
    x, z = draw(a, torch.bfloat16)
    y = gate(a, x, z)
    want = gate(a, x.double(), z.double())
    assert y.dtype == torch.bfloat16 and y.shape == (5, 64)
    # one rounding to bf16 at the end: half an ulp of an 8-bit significand, 2^-8 of the value
    assert ((y.double() - want).abs() <= want.abs() * 2**-8).all()


def test_sigmoid_of_each_channel_is_the_default():
    a = KIND.parse(dict(channels=6))
    x, z = draw(a)
    assert torch.equal(gate(a, x, z), gate(KIND.parse(dict(channels=6, activation="sigmoid", heads=None)), x, z))


def test_the_gate_of_a_shared_expert():
    """Qwen3-Next multiplies the shared expert's output by one sigmoid per token."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

    config = Qwen3NextConfig(
        hidden_size=8, shared_expert_intermediate_size=4, moe_intermediate_size=4, num_experts=2, num_experts_per_tok=1
    )
    block = Qwen3NextSparseMoeBlock(config).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    torch.nn.init.zeros_(block.experts.down_proj)
    a = KIND.parse(dict(channels=8, activation="sigmoid", heads=1))
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        got = gate(a, block.shared_expert(x[0]), block.shared_expert_gate(x[0]))
        want = block(x)
    want = want[0] if isinstance(want, tuple) else want
    # sums of 8 products of size ~10 in float64
    assert (got - want[0]).abs().max() < 1e-12


def test_cost():
    work = Work("decode", tokens=7, sequences=7, context=100)
    per_channel = KIND.cost(KIND.parse(dict(channels=12, activation="silu")), work)
    assert per_channel == Cost(7 * 12 * 5, 7 * 24 * 2, 7 * 12 * 2)
    per_head = KIND.cost(KIND.parse(dict(channels=12, heads=3)), work)
    assert per_head == Cost(7 * (12 + 3 * 3), 7 * 15 * 2, 7 * 12 * 2)
    assert KIND.cost(KIND.parse(dict(channels=12, activation="none")), work).flops == 7 * 12
    assert KIND.cost(KIND.parse(dict(channels=12, activation="gelu_tanh")), work).flops == 7 * 12 * 12


def test_contract_refuses():
    contract = KIND.implementation("torch").contract
    assert contract.refusals({"attribute": {"channels": 1}, "dtype": {"activation": "float16"}}) == []
    assert str(contract.refusals({"attribute": {"channels": 0}})[0]).startswith("gate/torch.channels: 0 ")
    assert contract.refusals({"dtype": {"activation": "int64"}})[0].clause == "dtype"


@pytest.mark.parametrize("heads", [0, 4])
def test_heads_must_divide_the_channels(heads):
    with pytest.raises(ValueError, match=f"6 channels cannot be cut into {heads} heads"):
        KIND.parse(dict(channels=6, heads=heads))


def test_parse_refusals():
    with pytest.raises(ValueError, match="per"):
        KIND.parse(dict(channels=6, per="head"))
    with pytest.raises(ValueError, match="activation"):
        KIND.parse(dict(channels=6, activation="tanh"))


def test_it_owns_nothing():
    a = KIND.parse(dict(channels=6))
    assert KIND.weights(a) == {} and KIND.components(a) == ()
    for value in KIND.attributes.alternatives()["activation"]:
        KIND.parse(dict(channels=6, activation=value))
