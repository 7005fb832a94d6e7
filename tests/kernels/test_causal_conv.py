"""causal_conv: against the formula per element, against transformers, and over every way to cut a sequence."""

import math
from functools import partial

import pytest
import torch

from day0.kernels.causal_conv.reference import causal_conv
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.kind import Cost, Work
from day0.kernels.registry import get_kind
from tests.kernels.steps import run_steps

KIND = get_kind("causal_conv")
# float64 sums of at most 5 terms of size ~1: a few ulp of 2.2e-16.
TOLERANCE = 1e-14


def draw(a, seed=0):
    """Weights and three sequences of 11, 2 and 7 tokens, in float64."""
    generator = torch.Generator().manual_seed(seed)
    owned = {n: torch.randn(w.shape, dtype=torch.float64, generator=generator) for n, w in KIND.weights(a).items()}
    xs = [torch.randn(n, a.channels, dtype=torch.float64, generator=generator) for n in (11, 2, 7)]
    return owned, xs


def pool(a, slots=5, dtype=torch.float64):
    (component,) = KIND.components(a)
    return torch.full((slots, *component.shape), float("nan"), dtype=dtype)


def fresh(n, slot=0, context=0):
    return Batch.pack([[0] * n], context_lens=[context], slots=[slot], pages=[[]])


def plain(a, x, weight, bias=None):
    """One output at a time, with Python floats."""
    y = torch.empty_like(x)
    for t in range(x.shape[0]):
        for c in range(x.shape[1]):
            total = 0.0 if bias is None else float(bias[c])
            for j in range(a.kernel_size):
                source = t - (a.kernel_size - 1 - j) * a.dilation
                total += float(weight[c, j]) * float(x[source, c]) if source >= 0 else 0.0
            y[t, c] = total / (1 + math.exp(-total)) if a.activation == "silu" else total
    return y


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel_size,dilation", [(2, 1), (3, 3), (4, 1), (4, 2)])
def test_formula_and_final_window(activation, bias, kernel_size, dilation):
    a = KIND.parse(dict(channels=5, kernel_size=kernel_size, activation=activation, bias=bias, dilation=dilation))
    owned, xs = draw(a)
    for x in xs:
        window = pool(a)
        y = causal_conv(a, x, **owned, batch=fresh(x.shape[0], slot=3), window=window)
        assert (y - plain(a, x, **owned)).abs().max() < TOLERANCE
        padded = torch.cat((torch.zeros(a.window, 5, dtype=x.dtype), x))
        assert torch.equal(window[3], padded[-a.window :].T)
        assert window[[0, 1, 2, 4]].isnan().all()


@pytest.mark.parametrize("dilation,bias", [(1, True), (2, False)])
@pytest.mark.parametrize(
    "chunks",
    [
        [[1] * 11, [1, 1], [1] * 7],
        [[2, 1, 8], [1, 0, 1], [0, 3, 1, 3]],
        [[11], [2], [7]],
        [[1, 10], [0, 2], [2, 2, 2, 1]],
    ],
    ids=["single tokens", "odd", "packed", "short first"],
)
def test_every_cut_and_packing_equals_each_sequence_alone(chunks, dilation, bias):
    a = KIND.parse(dict(channels=5, kernel_size=4, activation="silu", bias=bias, dilation=dilation))
    owned, xs = draw(a, seed=1)
    window = pool(a)
    slots = [4, 0, 2]
    got = run_steps(partial(causal_conv, a, **owned, window=window), [(x,) for x in xs], chunks, slots)
    for x, y, slot in zip(xs, got, slots, strict=True):
        alone = pool(a)
        want = causal_conv(a, x, **owned, batch=fresh(x.shape[0]), window=alone)
        # Same sums in the same order; only silu's vectorised and scalar code differ in the last bit.
        assert (y - want).abs().max() < TOLERANCE
        assert torch.equal(window[slot], alone[0])
    assert window[[1, 3]].isnan().all()


def test_a_step_reads_the_window_it_is_given():
    a = KIND.parse(dict(channels=2, kernel_size=3))
    owned = {"weight": torch.tensor([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]], dtype=torch.float64)}
    window = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=torch.float64)
    x = torch.tensor([[5.0, 6.0]], dtype=torch.float64)
    y = causal_conv(a, x, **owned, batch=fresh(1, context=9), window=window)
    assert y.tolist() == [[1 + 20 + 500, 2 * 3 + 20 * 4 + 200 * 6]]
    assert window.tolist() == [[[2.0, 5.0], [4.0, 6.0]]]


def test_split_hands_on_consecutive_parts():
    whole = KIND.parse(dict(channels=6, kernel_size=2))
    parts = KIND.parse(dict(channels=6, kernel_size=2, split=[1, 2, 3]))
    owned, (x, *_) = draw(whole)
    y = causal_conv(whole, x, **owned, batch=fresh(11), window=pool(whole))
    got = causal_conv(parts, x, **owned, batch=fresh(11), window=pool(parts))
    assert [p.shape[1] for p in got] == [1, 2, 3]
    assert torch.equal(torch.cat(got, dim=1), y)
    assert KIND.methods[""].output_names(parts) == ("y0", "y1", "y2")
    assert KIND.methods[""].output_names(whole) == ("y",)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_inner_arithmetic_is_float32_and_result_keeps_the_dtype(weight_dtype):
    a = KIND.parse(dict(channels=64, kernel_size=4, activation="silu", bias=True))
    owned, (x, *_) = draw(a)
    owned = {n: w.to(weight_dtype) for n, w in owned.items()}
    x = x.bfloat16()
    window = pool(a, dtype=torch.bfloat16)
    y = causal_conv(a, x, **owned, batch=fresh(11), window=window)
    want = causal_conv(a, x.double(), **{n: w.double() for n, w in owned.items()}, batch=fresh(11), window=pool(a))
    assert y.dtype == window.dtype == torch.bfloat16
    # one rounding to bf16 at the end (2^-8 of the value), and float32 sums of 5 terms of size ~1 before it
    assert ((y.double() - want).abs() <= want.abs() * 2**-8 + 5e-6).all()


def test_the_convolution_of_the_gated_delta_families():
    from transformers.models.glm5_next.modeling_glm5_next import causal_conv1d_fn, causal_conv1d_update

    a = KIND.parse(dict(channels=6, kernel_size=4, activation="silu", bias=True))
    owned, (x, *_) = draw(a)
    window = pool(a)
    y = causal_conv(a, x[:10], **owned, batch=fresh(10), window=window)
    want = causal_conv1d_fn(x[:10].T[None], owned["weight"], owned["bias"], activation="silu")
    assert (y - want[0].T).abs().max() < TOLERANCE

    # transformers keeps the last kernel_size inputs; the oldest of them never meets a weight again.
    cached = x[6:10].T[None].clone()
    y = causal_conv(a, x[10:], **owned, batch=fresh(1, context=10), window=window)
    want = causal_conv1d_update(x[10:].T[None], cached, owned["weight"], owned["bias"], activation="silu")
    assert (y - want[0].T).abs().max() < TOLERANCE
    assert torch.equal(window[0], cached[0, :, 1:])


def test_the_dilated_convolution_of_per_layer_embeddings():
    """Qwen4-Exp's `_short_conv`: conv1d with left padding (kernel_size - 1) * dilation, then silu."""
    a = KIND.parse(dict(channels=6, kernel_size=4, activation="silu", dilation=3))
    owned, (x, *_) = draw(a)
    y = causal_conv(a, x, **owned, batch=fresh(11), window=pool(a))
    padded = torch.nn.functional.pad(x.T[None], (9, 0))
    want = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, owned["weight"][:, None], groups=6, dilation=3))
    assert (y - want[0].T).abs().max() < TOLERANCE


def test_state_is_one_window_in_the_activation_dtype():
    (component,) = KIND.components(KIND.parse(dict(channels=5, kernel_size=4, dilation=3)), "layers.0.conv")
    assert (component.name, component.shape, component.dtype) == ("layers.0.conv.window", (5, 9), "activation")
    assert (component.role, component.rollback) == ("per_sequence", "restore")


def test_cost():
    a = KIND.parse(dict(channels=10, kernel_size=4, activation="silu", bias=True, dilation=2))
    work = Work("prefill", tokens=7, sequences=3, context=0, activation_bytes=2, weight_bytes=4)
    # per channel and token: 4 multiply-adds, the bias, 4 for silu; 10 * (4 + 1) weights; windows of 10 * 6
    assert KIND.cost(a, work) == Cost(7 * 10 * 13, 7 * 10 * 2 + 50 * 4, 7 * 10 * 2 + 3 * 60 * 2)
    again = Work("decode", tokens=7, sequences=3, context=1, activation_bytes=2, weight_bytes=4)
    assert KIND.cost(a, again).bytes_read == KIND.cost(a, work).bytes_read + 3 * 60 * 2
    bare = KIND.parse(dict(channels=10, kernel_size=4))
    assert KIND.cost(bare, work).flops == 7 * 10 * 8


@pytest.mark.parametrize("attribute", ["channels", "kernel_size", "dilation"])
def test_contract_refuses(attribute):
    a = KIND.parse(dict(channels=4, kernel_size=2))
    contract = KIND.implementation("torch").contract
    facts = dict(a.model_dump())
    assert contract.refusals({"attribute": facts, "dtype": {"activation": "bfloat16"}}) == []
    floor = {"channels": 1, "kernel_size": 2, "dilation": 1}[attribute]
    assert contract.refusals({"attribute": facts | {attribute: floor}}) == []
    (refusal,) = contract.refusals({"attribute": facts | {attribute: floor - 1}})
    assert str(refusal).startswith(f"causal_conv/torch.{attribute}: {floor - 1} ")
    assert contract.refusals({"dtype": {"activation": "int64"}})[0].clause == "dtype"


def test_parse_refusals():
    with pytest.raises(ValueError, match=r"sums to 5, channels is 6"):
        KIND.parse(dict(channels=6, kernel_size=2, split=[2, 3]))
    with pytest.raises(ValueError, match="activation"):
        KIND.parse(dict(channels=6, kernel_size=2, activation="relu"))
    with pytest.raises(ValueError, match="padding"):
        KIND.parse(dict(channels=6, kernel_size=2, padding=1))


def test_alternatives_parse_and_keep_the_weights():
    base = dict(channels=6, kernel_size=3)
    for name, values in KIND.attributes.alternatives().items():
        for value in values:
            assert KIND.weights(KIND.parse(base | {name: value})) == KIND.weights(KIND.parse(base))
