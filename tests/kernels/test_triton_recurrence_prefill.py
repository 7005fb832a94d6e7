"""recurrence prefill in Triton: the float64 token loop's numbers over the contract's edges, interpreted or on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from day0.kernels.common.conformance import ALLOWED_RATIO, check, relative_l2
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence import reference
from day0.kernels.recurrence.schema import weights
from day0.kernels.recurrence.triton_cases import draw_ports, draw_weights
from day0.kernels.recurrence.triton_cases_prefill import CASES, GDN, KDA, MAMBA2
from day0.kernels.recurrence.triton_prefill import CHUNK, Checkpoints, launch, prefill, workspace
from day0.kernels.recurrence.triton_prefill_chunk import chunk_base
from day0.kernels.registry import get_kind

# The upper half of a block's products overflows before it is masked; numpy, which interprets, says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

KIND = get_kind("recurrence")
CPU = [("cpu", torch.float32), ("cpu", torch.float16)]
GPU = [pytest.param("cuda", d, marks=pytest.mark.gpu) for d in (torch.bfloat16, torch.float16)]
ON = pytest.mark.parametrize("device,dtype", [("cpu", torch.float32), GPU[0]])


# In float16 it is the interpreted decays with one pivot per block that differ.
CHECKED = [
    *(pytest.param(c, "cpu", torch.float32, id=c.name) for c in CASES),
    pytest.param(CASES[0], "cpu", torch.float16, id=f"{CASES[0].name}, float16"),
    *(
        pytest.param(c, "cuda", d, id=f"{c.name}, cuda {d}", marks=pytest.mark.gpu)
        for c in CASES
        for d in (torch.bfloat16, torch.float16)
    ),
]


@pytest.mark.parametrize("case,device,dtype", CHECKED)
def test_as_near_to_float64_as_the_token_loop(case, device, dtype):
    findings = check("recurrence", "triton", case, dtype=dtype, device=device)
    assert findings
    assert all(f.holds for f in findings), [f for f in findings if not f.holds]


def test_products_in_tf32_may_cut_digits_off(monkeypatch):
    """As a GPU does, and the interpreter does not."""
    create_dot = InterpreterBuilder.create_dot

    def cut(operand):
        return TensorHandle((operand.data.view(np.uint32) & 0xFFFFE000).view(np.float32), operand.dtype)

    def cutting(self, a, b, d, precision, imprecise):
        if a.data.dtype == np.float32 and "TF32" in str(precision).upper():
            a, b = cut(a), cut(b)
            cutting.times += 1
        return create_dot(self, a, b, d, precision, imprecise)

    cutting.times = 0
    monkeypatch.setattr(InterpreterBuilder, "create_dot", cutting)
    case = next(c for c in CASES if c.name == "prefill, gated linear attention")
    findings = check("recurrence", "triton", case, dtype=torch.float16)
    assert all(f.holds for f in findings) and cutting.times


class Problem:
    """Random ports for sequences of these lengths; `contexts` tokens of each are in its slot already."""

    def __init__(self, attributes, lengths, contexts=None, *, device="cpu", dtype=torch.float32, spare=2, seed=0):
        self.a, self.dtype = KIND.parse(attributes), dtype
        generator = torch.Generator().manual_seed(seed)
        parts = [draw_ports(self.a, n, generator) for n in lengths]
        self.ports = [
            None if column[0] is None else torch.cat(column).to(device, dtype) for column in zip(*parts, strict=True)
        ]
        self.owned = {n: w.float().to(device) for n, w in draw_weights(self.a, generator).items()}
        contexts = contexts or [0] * len(lengths)
        self.slots = torch.randperm(len(lengths) + spare, generator=generator)[: len(lengths)].tolist()
        shape = (len(lengths) + spare, self.a.value_heads, self.a.key_dim, self.a.value_dim)
        self.state = torch.full(shape, float("nan"))
        for slot, context in zip(self.slots, contexts, strict=True):
            if context:
                self.state[slot] = torch.randn(shape[1:], generator=generator)
        self.state = self.state.to(device)
        self.lengths, self.contexts = lengths, contexts
        self.batch = self.pack(device)

    def pack(self, device):
        return Batch.pack(
            [[0] * n for n in self.lengths],
            context_lens=self.contexts,
            slots=self.slots,
            pages=[[] for _ in self.lengths],
            device=device,
        )

    def run(self, **more):
        """(outputs, the whole pool of states afterwards)"""
        state = self.state.clone()
        return prefill(self.a, *self.ports, **self.owned, batch=self.batch, state=state, **more), state

    def plainly(self, dtype):
        """(outputs, states of the sequences) of the token loop on the CPU"""
        ports = [None if p is None else p.cpu().to(dtype) for p in self.ports]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        owned = {n: w.cpu().to(wide) for n, w in self.owned.items()}
        state = self.state.cpu().to(wide)
        return reference.recurrence(self.a, *ports, **owned, batch=self.pack("cpu"), state=state), state[self.slots]

    def launch(self, chunks, out):
        scratch = workspace(self.a, chunks * CHUNK, 0, dtype=out.dtype, device=out.device)
        none = {n: None for n in ("A_log", "dt_bias", "D")}
        state = self.state.clone()
        owned = none | self.owned
        launch(self.a, *self.ports, **owned, batch=self.batch, state=state, out=out, scratch=scratch)
        return out, state


def assert_near(problem, o, state):
    """The conformance check's bound, for the outputs and for the states of all sequences."""
    exact, plain = problem.plainly(torch.float64), problem.plainly(problem.dtype)
    for got, want, rounded in zip((o, state[problem.slots]), exact, plain, strict=True):
        bound = ALLOWED_RATIO * relative_l2(rounded, want) + torch.finfo(problem.dtype).eps / 2
        assert relative_l2(got, want) <= bound


@ON
@pytest.mark.parametrize("attributes", [KDA, GDN, MAMBA2], ids=["kda", "gdn", "mamba-2"])
def test_ragged_packs_permuted_slots_and_sequences_without_tokens(attributes, device, dtype):
    lengths, contexts = [0, 1, 65, 0, 66], [0, 3, 0, 9, 7]
    problem = Problem(attributes, lengths, contexts, device=device, dtype=dtype)
    o, state = problem.run()
    assert_near(problem, o, state)
    used, unused = problem.slots, [s for s in range(len(state)) if s not in problem.slots]
    assert torch.equal(state[used[0]], torch.zeros_like(state[0])), "fresh and without tokens: the initial state"
    assert torch.equal(state[used[3]], problem.state[used[3]]), "known and without tokens: as it was"
    assert state[unused].isnan().all(), "slots of nobody in this step are left alone"


@ON
def test_windows_and_repeats_give_the_same_bits(device, dtype):
    one_head = KDA | {"key_heads": 1, "value_heads": 1}
    problem = Problem(one_head, [65, 0, 66], [0, 2, 5], device=device, dtype=dtype)
    o, state = problem.run()
    for chunks in (1, 2):
        again, state_again = problem.launch(chunks, torch.full_like(o, float("nan")))
        assert torch.equal(o, again)
        assert torch.equal(state[problem.slots], state_again[problem.slots])


@pytest.mark.gpu
def test_windows_beside_each_other_in_a_graph():
    problem = Problem(KDA, [513, 70], [0, 5], device="cuda", dtype=torch.bfloat16)
    want, want_state = problem.run()
    none = {n: None for n in ("A_log", "dt_bias", "D")}
    scratch = workspace(problem.a, 4 * CHUNK, 0, dtype=want.dtype, device="cuda")
    out, state = torch.empty_like(want), problem.state.clone()

    def run():
        state.copy_(problem.state)
        owned = none | problem.owned
        launch(problem.a, *problem.ports, **owned, batch=problem.batch, state=state, out=out, scratch=scratch)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, want)
        assert torch.equal(state[problem.slots], want_state[problem.slots])


@ON
def test_a_sequence_does_not_see_its_batch_mates(device, dtype):
    whole = Problem(GDN, [70, 65, 1], [0, 4, 0], device=device, dtype=dtype)
    o, state = whole.run()
    alone = Problem(GDN, [65], [4], device=device, dtype=dtype)
    alone.ports = [None if p is None else p[70:135] for p in whole.ports]
    alone.owned, alone.state = whole.owned, whole.state
    alone.batch = replace(alone.batch, slots=alone.batch.slots * 0 + whole.slots[1])
    o_alone, state_alone = alone.run()
    assert torch.equal(o[70:135], o_alone)
    assert torch.equal(state[whole.slots[1]], state_alone[whole.slots[1]])


@ON
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_sequence_and_head(bad, device, dtype):
    problem = Problem(KDA, [70, 70], device=device, dtype=dtype)
    problem.ports[2].view(-1, 2, 64)[10, 1, 3] = bad  # v, sequence 0, head 1
    o, state = problem.run()
    o = o.view(-1, 2, 64)
    assert o[:, 0].isfinite().all() and o[70:].isfinite().all()
    assert not o[10:70, 1, 3].isfinite().any()
    assert not state[problem.slots[0], 1, :, 3].isfinite().any()
    assert state[problem.slots[1]].isfinite().all()


@ON
@pytest.mark.parametrize("attributes", [KDA, GDN], ids=["per channel", "per head"])
def test_the_strongest_decays_neither_overflow_nor_lose_what_stays(attributes, device, dtype):
    problem = Problem(attributes | {"decay_form": "given"}, [100], device=device, dtype=dtype)
    g = problem.ports[3]
    strong = torch.rand(g.shape, generator=torch.Generator().manual_seed(1)).to(device) < 0.5
    problem.ports[3] = torch.where(strong, float("-inf"), 0.0).to(dtype)
    o, state = problem.run()
    assert o.float().norm() > 0.1
    assert_near(problem, o, state)


@pytest.mark.parametrize("device,dtype", [*CPU, *GPU, pytest.param("cuda", torch.float32, marks=pytest.mark.gpu)])
def test_keys_that_repeat_are_inverted_without_loss(device, dtype):
    """Equal keys written at full strength: powers of the matrix would reach binomial coefficients of 32 over 16."""
    problem = Problem(GDN | {"decay": "none"}, [128], device=device, dtype=dtype)
    problem.ports[1] = problem.ports[1][:1].expand(128, -1).contiguous()
    problem.ports[4] = torch.full_like(problem.ports[4], 20.0)  # beta = sigmoid(20)
    assert_near(problem, *problem.run())


@ON
def test_checkpoints_are_the_states_on_the_way(device, dtype):
    attributes = GDN | {"value_heads": 1}
    problem = Problem(attributes, [130, 64, 63], [3, 0, 0], device=device, dtype=dtype)
    states = torch.full((5, 1, 64, 64), float("nan"), device=device)
    rows = torch.tensor([[4, 0, -1], [2, -1, -1], [3, 3, 3]], device=device)
    o, state = problem.run(checkpoints=Checkpoints(states, rows, CHUNK))
    assert torch.equal(o, problem.run()[0])
    for row, first, tokens in ((4, 0, 64), (0, 0, 128), (2, 130, 64)):
        part = Problem(attributes, [tokens], [3 if first == 0 else 0], device=device, dtype=dtype)
        part.ports = [None if p is None else p[first : first + tokens] for p in problem.ports]
        part.owned, part.state = problem.owned, problem.state
        part.batch = replace(part.batch, slots=part.batch.slots * 0 + problem.slots[0 if first == 0 else 1])
        assert torch.equal(states[row], part.run()[1][int(part.batch.slots[0])])
    assert states[1].isnan().all() and states[3].isnan().all(), "rows below 0 and blocks not reached are not written"


@ON
def test_ports_that_are_columns_of_wider_rows(device, dtype):
    problem = Problem(GDN, [70], device=device, dtype=dtype)
    want, want_state = problem.run()
    q, k, v, decay, beta = problem.ports
    wide = torch.cat([q, k, v, decay, beta], 1)
    problem.ports = list(wide.split([p.shape[1] for p in problem.ports], 1))
    o, state = problem.run()
    assert torch.equal(o, want)
    assert torch.equal(state[problem.slots], want_state[problem.slots])


@triton.jit
def _places(cu_seqlens, sequence, slot, slot_stride, out):
    tl.store(out, chunk_base(cu_seqlens, sequence))
    tl.store(out + 1, tl.load(slot) * slot_stride)


def test_offsets_of_far_tokens_and_slots_are_64_bit():
    cu = torch.tensor([0, 2**40, 2**40 + 1])
    out = torch.zeros(2, dtype=torch.int64)
    _places[(1,)](cu, 1, torch.tensor([2**20]), 64 * 128 * 128, out)
    assert out.tolist() == [2**40 // CHUNK + 1, 2**20 * 64 * 128 * 128]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_chunk_numbers_of_sequences_never_meet(lengths):
    """The numbering that needs no prefix sum: first chunks at cu // CHUNK + s, all below N // CHUNK + S."""
    ends = [0]
    for n in lengths:
        ends.append(ends[-1] + n)
    free = 0
    for s, n in enumerate(lengths):
        first = ends[s] // CHUNK + s
        assert first >= free
        free = first + -(-n // CHUNK)
    assert free <= ends[-1] // CHUNK + len(lengths)


@given(st.lists(st.integers(0, 70), max_size=2), st.integers(0, 1000))
@settings(max_examples=4, deadline=None, derandomize=True)
def test_any_packing_equals_the_token_loop(lengths, seed):
    problem = Problem(GDN | {"key_dim": 16, "value_dim": 16}, [*lengths, 1], [seed % 3] * (len(lengths) + 1), seed=seed)
    assert_near(problem, *problem.run())


def test_refusals_before_anything_runs():
    problem = Problem(KDA, [3])
    out, state = torch.empty(3, 128), problem.state.clone()
    q, k, v, decay, beta = problem.ports
    good = dict(problem.owned, batch=problem.batch, state=state)
    for ports, change, word in (
        ((q[:2], k, v, decay, beta), {}, "q of shape"),
        ((q.half(), k, v, decay, beta), {}, "q in"),
        ((q, k, v, None, beta), {}, "decay"),
        ((q, k, v, decay, beta), {"D": torch.ones(2)}, "D left out"),
        ((q, k, v, decay, beta), {"state": state[:, :1]}, "state of shape"),
        ((q, k, v, decay, beta), {"state": state.mT}, "state"),
        ((q, k, v, decay, beta), {"checkpoints": Checkpoints(state, torch.zeros(1, 1, dtype=torch.int64), 65)}, "65"),
    ):
        with pytest.raises(ContractError, match=word):
            prefill(problem.a, *ports, **(good | change))
    with pytest.raises(ContractError, match="head dims"):
        prefill(KIND.parse(KDA | {"key_dim": 48}), *problem.ports, **good)
    other = workspace(KIND.parse(GDN | {"value_heads": 4}), 3, 1, dtype=torch.float32, device="cpu")
    with pytest.raises(ContractError, match="workspace"):
        launch(
            problem.a, *problem.ports, **problem.owned, D=None, batch=problem.batch, state=state, out=out, scratch=other
        )
    assert torch.equal(state.isnan(), problem.state.isnan())
    assert set(weights(problem.a)) == {"A_log", "dt_bias"}
