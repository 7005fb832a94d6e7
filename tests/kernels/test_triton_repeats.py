"""A kernel that runs again on the same inputs gives the same bits: outputs and memory, of every kind.

What runs are the cases of the conformance check, and of kernels whose programs count each other by tickets a launch
that many programs share. Interpreted, programs run one after the other: there only this file itself is tested.
"""

from dataclasses import replace

import pytest
import torch

from day0.kernels.common.conformance import Case, results
from day0.kernels.index_select.triton_cases import TOKEN, zero_weights
from day0.kernels.index_select.triton_choose import plan
from day0.kernels.interface.batch import Batch
from day0.kernels.quantize.triton_cases import FORMS, SCALES, exact
from day0.kernels.quantize.triton_quantize import quantize
from day0.kernels.recurrence import triton_bench as decode
from day0.kernels.registry import declared, get_kind
from day0.kernels.sample.triton_cases import OPTIONS, drawn
from tests.kernels.triton_folders import with_tickets, with_triton_kernels

FOLDERS = (
    "attention",
    "causal_conv",
    "index_select",
    "linear",
    "mlp",
    "moe",
    "norm",
    "quantize",
    "recurrence",
    "residual_mix",
    "rotary",
    "sample",
    "sparse_attention",
)
REPEATS = {True: 20, False: 5}  # with tickets, and without


def _index_ports(a, n, generator):
    def draw(width):
        return torch.randn(n, width, generator=generator, dtype=torch.float64)

    return draw(a.heads * a.dim), draw(a.dim), draw(a.heads), None


# Of kinds with tickets, on a GPU: a long context, whose selection is shared by programs.
LONG = Case("long contexts", TOKEN | {"budget": 512}, ((17000, 1, 1), (9000, 1, 1)), _index_ports, zero_weights)
SHARED = {"index_select": [LONG]}


def quantised(device):
    rows = torch.randn(4, 256) if device == "cpu" else torch.randn(4096, 8192)
    x = rows.to(device, torch.float16)

    def run():
        found = []
        for form in FORMS:
            for scales in SCALES:
                out = [torch.empty_like(t, device=device) for t in exact(x[:1], form, scales)]
                out = [t.new_empty(len(x), t.shape[1]) for t in out]
                quantize(x, *out)
                found += out
        return found

    return run


def sampled(device):
    options, vocabulary = (OPTIONS[-1:], 40) if device == "cpu" else (OPTIONS, 151_936)
    logits = (3 * torch.randn(len(options), vocabulary)).to(device)
    return lambda: [drawn(logits, options, tuple(range(len(options))))]


def decoded(device):
    """One step with convolution and output norm, for which the programs of a key head count each other."""
    small = dict(key_heads=1, value_heads=2, key_dim=16, value_dim=32)
    a = decode.GDN.model_copy(update=small) if device == "cpu" else decode.GDN
    step = decode.Step.random(a, 2 if device == "cpu" else 64, device)

    def run():
        # The scratch stays: each launch leaves its tickets as the next one needs them.
        again = replace(step, state=step.state.clone(), window=step.window.clone(), out=torch.empty_like(step.out))
        again.run()
        return [again.out, again.state, again.window]

    return run


LAUNCHES = {"quantize": [quantised], "sample": [sampled], "recurrence": [decoded]}


def of_case(folder, case, dtype, device):
    def run():
        return [x for step in results(folder, "triton", case, dtype=dtype, device=device) for x in step.values()]

    return run


def cases(folder):
    return [case for case in declared(folder, "triton_cases", "CASES") if isinstance(case, Case)]


def assert_same_bits(run, repeats):
    def bits():
        return [x.cpu().contiguous().flatten().view(torch.uint8).clone() for x in run()]

    first = bits()
    assert sum(map(len, first))
    for _ in range(repeats - 1):
        assert all(torch.equal(x, y) for x, y in zip(first, bits(), strict=True))


@pytest.mark.parametrize("folder", FOLDERS)
def test_small(folder):
    """The first case, cut down to what the interpreter is done with soon, and the launches."""
    torch.manual_seed(0)
    runs = [launch("cpu") for launch in LAUNCHES.get(folder, ())]
    runs += [of_case(folder, replace(c, chunks=((1, 1), (1,))), torch.float16, "cpu") for c in cases(folder)[:1]]
    assert runs
    for run in runs:
        assert_same_bits(run, 2)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("folder", "case"),
    [pytest.param(f, c, id=f"{f}-{c.name}") for f in FOLDERS for c in (*cases(f), *SHARED.get(f, ()))],
)
def test_case(folder, case):
    assert_same_bits(of_case(folder, case, torch.bfloat16, "cuda"), REPEATS[folder in with_tickets()])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("folder", "launch"), [pytest.param(f, x, id=x.__name__) for f, launches in LAUNCHES.items() for x in launches]
)
def test_launch(folder, launch):
    torch.manual_seed(0)
    assert_same_bits(launch("cuda"), REPEATS[folder in with_tickets()])


def test_every_folder_with_triton_kernels_is_repeated():
    assert set(FOLDERS) == with_triton_kernels()


def test_tickets_are_repeated_where_many_programs_share_them():
    assert set(SHARED) | {"recurrence"} == with_tickets()


@pytest.mark.gpu
def test_what_is_meant_to_be_shared_by_programs_is():
    a = get_kind("index_select").parse(LONG.attributes)
    batch = Batch.pack(
        [[0], [0]], context_lens=[17000, 9000], slots=[0, 1], pages=[list(range(266)), list(range(266, 407))],
        phase="decode", device="cuda",
    )  # fmt: skip
    assert plan(a, batch, 2, torch.bfloat16, torch.device("cuda")).parts > 1


def test_a_difference_is_seen():
    outputs = iter([[torch.tensor([0.0, float("nan")])], [torch.tensor([-0.0, float("nan")])]])
    with pytest.raises(AssertionError):
        assert_same_bits(lambda: next(outputs), 2)
    assert_same_bits(lambda: [torch.tensor([0.0, float("nan")])], 3)
