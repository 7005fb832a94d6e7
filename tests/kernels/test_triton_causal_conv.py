"""The short convolution in Triton: against float64 over every cut, packed and alone, padding, speculation, refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.kernels.causal_conv.contract import TRITON
from day0.kernels.causal_conv.triton_cases import CASES
from day0.kernels.causal_conv.triton_conv import launch
from day0.kernels.common.conformance import check
from day0.kernels.common.triton_launch import INTERPRETED, ContractError
from day0.kernels.interface.batch import Batch
from day0.kernels.registry import get_kind

KIND = get_kind("causal_conv")
DEVICE = "cpu" if INTERPRETED else "cuda"
A = KIND.parse(dict(channels=20, kernel_size=4, activation="silu"))
NAN = float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case, dtype):
    for finding in check("causal_conv", "triton", case, dtype=dtype, device=DEVICE):
        assert finding.holds, finding


def draw(lengths, contexts, seed=0):
    """x, weight, window with NaN in slots of new or no sequences, slots; on the device."""
    generator = torch.Generator().manual_seed(seed)
    n, s = sum(lengths), len(lengths)
    x, weight, window = (
        torch.randn(*shape, generator=generator) for shape in ((n, 20), (20, 4), (s + 2, 20, A.window))
    )
    slots = torch.randperm(s + 2, generator=generator)[:s].tolist()
    known = [slot for slot, context in zip(slots, contexts, strict=True) if context]
    window[[slot for slot in range(s + 2) if slot not in known]] = NAN
    return x.to(DEVICE), weight.to(DEVICE), window.to(DEVICE), slots


def pack(lengths, contexts, slots, phase="prefill"):
    return Batch.pack(
        [[0] * n for n in lengths],
        context_lens=contexts,
        slots=slots,
        pages=[[] for _ in lengths],
        phase=phase,
        device=DEVICE,
    )


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 2**31))
def test_a_pack_equals_each_sequence_alone(lengths, seed):
    contexts = [s % 2 * 3 for s in range(len(lengths))]
    x, weight, window, slots = draw(lengths, contexts, seed)
    packed, out = window.clone(), torch.full_like(x, NAN)
    launch(A, x, weight=weight, batch=pack(lengths, contexts, slots), window=packed, out=out)
    again, repeated = window.clone(), torch.full_like(x, NAN)
    launch(A, x, weight=weight, batch=pack(lengths, contexts, slots), window=again, out=repeated)
    assert torch.equal(out, repeated) and torch.equal(packed.nan_to_num(), again.nan_to_num())
    start = 0
    for s, n in enumerate(lengths):
        rows = slice(start, start + n)
        alone = window.clone()
        y = torch.full_like(x[rows], NAN)
        batch = pack([n], contexts[s : s + 1], slots[s : s + 1])
        launch(A, x[rows], weight=weight, batch=batch, window=alone, out=y)
        assert torch.equal(y, out[rows]) and not y.isnan().any()
        assert torch.equal(alone[slots[s]].nan_to_num(), packed[slots[s]].nan_to_num())
        start += n


def test_padding_is_not_touched():
    x, weight, window, slots = draw([20, 3, 0], [3, 0, 5])
    before = window.clone()
    batch = pack([20, 3, 0], [3, 0, 5], slots)
    batch.cu_seqlens[2:] = 20  # the second sequence became padding
    out = torch.full_like(x, NAN)
    launch(A, x, weight=weight, batch=batch, window=window, out=out)
    assert not out[:20].isnan().any() and out[20:].isnan().all()
    changed = (window.nan_to_num() != before.nan_to_num()).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [slots[0]]


def test_drafted_tokens_move_the_window_when_they_are_accepted():
    lengths, contexts = [5, 5, 2], [3, 0, 4]
    x, weight, window, slots = draw(lengths, contexts)
    batch = pack(lengths, contexts, slots, phase="verify")
    before, out = window.clone(), torch.full_like(x, NAN)
    launch(A, x, weight=weight, batch=batch, window=window, out=out, commit=False)
    assert torch.equal(window.nan_to_num(), before.nan_to_num()) and not out.isnan().any()
    for accepted in ([0, 1, 2], [2, 5, 0], [4, 3, 1]):
        moved, stepped = window.clone(), window.clone()
        launch(A, x, weight=weight, batch=batch, window=moved, out=None, accepted=torch.tensor(accepted, device=DEVICE))
        rows = [start + t for start, n in zip((0, 5, 10), accepted, strict=True) for t in range(n)]
        y = torch.full_like(x[rows], NAN)
        launch(A, x[rows], weight=weight, batch=pack(accepted, contexts, slots), window=stepped, out=y)
        assert torch.equal(y, out[rows])
        assert torch.equal(moved.nan_to_num(), stepped.nan_to_num())


def test_refusals_before_anything_runs():
    x, weight, window, slots = draw([2], [3])
    right = dict(a=A, x=x, weight=weight, batch=pack([2], [3], slots), window=window, out=torch.empty_like(x))
    wrong = {
        "x of shape": dict(x=x[:, :19]),
        "x in": dict(x=x.double()),
        "no bias": dict(bias=weight[:, 0]),
        "window of shape": dict(window=window[..., :2]),
        "a contiguous weight": dict(weight=torch.zeros(20, 8, device=DEVICE)[:, :4]),
        "accepted without out": dict(accepted=torch.ones(1, dtype=torch.int64, device=DEVICE)),
        "at most 64 inputs": dict(a=A.model_copy(update=dict(dilation=30))),
    }
    before = window.clone()
    for words, change in wrong.items():
        with pytest.raises(ContractError, match=words):
            launch(**right | change)
    assert torch.equal(window.nan_to_num(), before.nan_to_num())


def test_contract_takes_a_gpu_with_triton_only():
    facts = {"attribute": A.model_dump(), "dtype": {"activation": "bfloat16"}}
    assert not TRITON.refusals(facts | {"device": {"type": "cuda", "triton": True}})
    refused = TRITON.refusals(facts | {"device": {"type": "cpu", "triton": False}})
    assert [r.clause for r in refused] == ["device", "triton"]
