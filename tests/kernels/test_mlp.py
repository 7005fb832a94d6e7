"""mlp: against the formula written out per element, and against the modules of the families, in float64."""

import math

import pytest
import torch

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.mlp.reference import mlp
from day0.kernels.registry import get_kind

KIND = get_kind("mlp")
# float64: two nested sums of at most 7 products of size ~1; well under 100 ulp of 2.2e-16, times values up to ~50.
TOLERANCE = 1e-12

ACTIVATIONS = {
    "silu": lambda z: z / (1 + math.exp(-z)),
    "gelu_tanh": lambda z: 0.5 * z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "relu": lambda z: max(z, 0.0),
    "relu2": lambda z: max(z, 0.0) ** 2,
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(21)


def make(**changes):
    a = KIND.parse(dict(width=5, hidden=7) | changes)
    return a, {n: 2.0 * torch.randn(w.shape, dtype=torch.float64) for n, w in KIND.weights(a).items()}


def plain(a, x, owned):
    """One element at a time, with Python floats."""
    act = ACTIVATIONS[a.activation]
    y = torch.zeros_like(x)
    for n in range(x.shape[0]):
        inner = []
        for h in range(a.hidden):
            if a.gated:
                gate = sum(float(w) * float(v) for w, v in zip(owned["gate_up"][h], x[n], strict=True))
                up = sum(float(w) * float(v) for w, v in zip(owned["gate_up"][a.hidden + h], x[n], strict=True))
                if a.clamp:
                    gate, up = min(gate, a.clamp), min(max(up, -a.clamp), a.clamp)
                inner.append(act(gate) * up)
            else:
                inner.append(act(sum(float(w) * float(v) for w, v in zip(owned["up"][h], x[n], strict=True))))
        for c in range(a.width):
            y[n, c] = sum(float(owned["down"][c, h]) * inner[h] for h in range(a.hidden))
    return y


@pytest.mark.parametrize("form", list(ACTIVATIONS))
@pytest.mark.parametrize("gated,clamp", [(True, 0.0), (True, 0.7), (False, 0.0)])
def test_formula(form, gated, clamp):
    a, owned = make(activation=form, gated=gated, clamp=clamp)
    x = torch.randn(4, 5, dtype=torch.float64)
    assert (mlp(a, x, **owned) - plain(a, x, owned)).abs().max() < TOLERANCE


def test_weights_follow_the_gate():
    assert {n: w.shape for n, w in KIND.weights(make()[0]).items()} == {"gate_up": (14, 5), "down": (5, 7)}
    assert {n: w.shape for n, w in KIND.weights(make(gated=False)[0]).items()} == {"up": (7, 5), "down": (5, 7)}


@pytest.mark.parametrize("family", ["glm5_next", "qwen3_next", "kimi_linear", "deepseek_v32"])
def test_transformers_module(family):
    from types import SimpleNamespace

    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32MLP
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextMLP
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearMLP
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextMLP

    module = dict(
        glm5_next=Glm5NextTextMLP, qwen3_next=Qwen3NextMLP, kimi_linear=KimiLinearMLP, deepseek_v32=DeepseekV32MLP
    )[family]
    limit = 0.8 if family == "glm5_next" else 0.0
    config = SimpleNamespace(hidden_size=5, intermediate_size=7, hidden_act="silu", swiglu_limit=limit)
    a, owned = make(clamp=limit)
    theirs = module(config).double()
    gate, up = owned["gate_up"].chunk(2)
    theirs.load_state_dict({"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": owned["down"]})
    x = torch.randn(6, 5, dtype=torch.float64)
    assert (mlp(a, x, **owned) - theirs(x)).abs().max() < TOLERANCE


@pytest.mark.parametrize("gated,matrices", [(True, 3), (False, 2)])
def test_cost(gated, matrices):
    a = make(gated=gated)[0]
    work = Work("decode", tokens=4, sequences=4, context=100, activation_bytes=2, weight_bytes=1)
    want = Cost(flops=2 * 4 * matrices * 35, bytes_read=matrices * 35 + 4 * 5 * 2, bytes_written=4 * 5 * 2)
    assert KIND.cost(a, work) == want


def test_contract_refuses_what_cannot_be():
    contract = KIND.implementation("torch").contract
    bad = {"attribute": {"width": 0, "hidden": 0, "clamp": -1.0}, "dtype": {"activation": "int8"}}
    assert [r.clause for r in contract.refusals(bad)] == ["width", "hidden", "clamp", "dtype"]
    good = {"attribute": {"width": 1, "hidden": 1, "clamp": 0.0}, "dtype": {"activation": "bfloat16"}}
    assert contract.refusals(good) == []


def test_parse_refuses():
    with pytest.raises(ValueError, match="gated: false"):
        make(gated=False, clamp=1.0)
    with pytest.raises(ValueError, match="swish"):
        make(activation="swish")
    with pytest.raises(ValueError, match="bias"):
        make(bias=True)


def test_alternatives_parse():
    for name, values in type(make()[0]).alternatives().items():
        for value in values:
            assert getattr(make(**{name: value})[0], name) == value
