"""Recurrent decode, verify and commit in Triton: against float64, fused and apart, over slots, packs and speculation.

Interpreted where there is no GPU; on one, the same tests also run in bfloat16.
"""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.kernels.common.conformance import ALLOWED_RATIO, check, relative_l2
from day0.kernels.common.triton_launch import INTERPRETED, ContractError
from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence import triton_decode, triton_verify
from day0.kernels.recurrence.contract import TRITON
from day0.kernels.recurrence.triton_cases import CASES, draw_ports, draw_weights
from day0.kernels.recurrence.triton_decode import launch, state_offsets, workspace
from day0.kernels.recurrence.triton_pieces import OutputNorm, ShortConv
from day0.kernels.registry import get_kind, resolve

KIND = get_kind("recurrence")
DEVICE = "cpu" if INTERPRETED else "cuda"
ON_BOTH = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
TAPS, EPS = 4, 1e-5

SMALL = dict(key_dim=16, value_dim=8, delta_rule=True, beta="sigmoid", qk_norm="l2")
KDA = dict(SMALL, key_heads=1, value_heads=1, decay="per_channel", decay_form="bounded_sigmoid")
GDN = dict(SMALL, key_heads=1, value_heads=2, decay="per_head", decay_form="softplus")
MAMBA2 = dict(
    key_heads=1, value_heads=2, key_dim=16, value_dim=8, delta_rule=False, decay="per_head", decay_form="time_step",
    time_step_min=0.001, time_step_max=0.1, scale=1.0, skip=True,
)  # fmt: skip


@pytest.mark.parametrize("dtype", ON_BOTH)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case, dtype):
    for finding in check("recurrence", "triton", case, dtype=dtype, device=DEVICE):
        assert finding.holds, finding


def test_conformance_in_float16():
    for finding in check("recurrence", "triton", CASES[0], dtype=torch.float16, device=DEVICE):
        assert finding.holds, finding


class Problem:
    """Float64 tensors of one step on the CPU, and what each side makes of them."""

    def __init__(self, attributes, lengths, contexts, *, v_first=False, bias=False, seed=0, **norm):
        self.a = a = KIND.parse(attributes)
        generator = torch.Generator().manual_seed(seed)
        n, s = sum(lengths), len(lengths)
        keys, values = a.key_heads * a.key_dim, a.value_heads * a.value_dim
        self.channels = 2 * keys + values
        self.starts = (values, values + keys, 0) if v_first else (0, keys, 2 * keys)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.lengths, self.contexts = lengths, contexts
        self.slots = torch.randperm(s + 2, generator=generator)[:s].tolist()
        _, _, _, self.decay, self.beta = draw_ports(a, n, generator)
        self.owned = dict(draw_weights(a, generator))
        self.x, self.gate = normal(n, self.channels), normal(n, values)
        self.conv_weight = normal(self.channels, TAPS)
        self.conv_bias = normal(self.channels) if bias else None
        self.norm = dict(weight="plain", gate="none", gate_order="after_norm") | norm
        self.norm_weight = normal(a.value_dim)
        self.state = normal(s + 2, a.value_heads, a.key_dim, a.value_dim)
        self.window = normal(s + 2, self.channels, TAPS - 1)
        fresh = [slot for slot, context in zip(self.slots, contexts, strict=True) if context == 0]
        unused = [slot for slot in range(s + 2) if slot not in self.slots]
        self.state[fresh + unused] = self.window[fresh + unused] = float("nan")

    def batch(self, lengths=None, contexts=None, phase="verify", device="cpu"):
        return Batch.pack(
            [[0] * n for n in lengths or self.lengths],
            context_lens=contexts or self.contexts,
            slots=self.slots,
            pages=[[] for _ in self.slots],
            phase=phase,
            device=device,
        )

    def rounded(self, dtype):
        """Every side gets the same values: ports and memory as `dtype` holds them, float32 where weights are."""
        for name in ("x", "gate", "decay", "beta", "conv_weight", "conv_bias", "norm_weight", "window"):
            value = getattr(self, name)
            setattr(self, name, value if value is None else value.to(dtype).double())
        self.owned = {name: w.float().double() for name, w in self.owned.items()}
        self.state = self.state.float().double()
        return self

    def reference(self, dtype):
        """Convolution, recurrence and norm one after the other, in plain PyTorch on the CPU: y, state, window."""
        a = self.a
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        conv = get_kind("causal_conv").parse(
            dict(channels=self.channels, kernel_size=TAPS, activation="silu", bias=self.conv_bias is not None)
        )
        norm = get_kind("norm").parse(dict(dim=a.value_dim, groups=1, eps=EPS, cast="after_weight", **self.norm))
        state, window, batch = self.state.clone().to(wide), self.window.clone().to(dtype), self.batch()
        bias = {} if self.conv_bias is None else {"bias": self.conv_bias.to(dtype)}
        x = resolve("causal_conv", "torch")(
            conv, self.x.to(dtype), weight=self.conv_weight.to(dtype), **bias, batch=batch, window=window
        )
        widths = (a.key_heads * a.key_dim,) * 2 + (a.value_heads * a.value_dim,)
        q, k, v = (x[:, at : at + width] for at, width in zip(self.starts, widths, strict=True))
        o = resolve("recurrence", "torch")(
            a, q, k, v, *(p if p is None else p.to(dtype) for p in (self.decay, self.beta)),
            **{name: w.to(wide) for name, w in self.owned.items()}, batch=batch, state=state,
        )  # fmt: skip
        weight = {} if self.norm["weight"] == "none" else {"weight": self.norm_weight.to(dtype)}
        z = [] if self.norm["gate"] == "none" else [self.gate.to(dtype).unflatten(1, (-1, a.value_dim))]
        y = resolve("norm", "torch")(norm, o.unflatten(1, (-1, a.value_dim)), *z, **weight)
        return y.flatten(1), state, window

    def arguments(self, dtype, config=None):
        """Arguments of the launches, on the device; a fresh copy of the memory."""
        a = self.a

        def cast(x):
            return None if x is None else x.to(DEVICE, dtype)

        x = cast(self.x)
        widths = (a.key_heads * a.key_dim,) * 2 + (a.value_heads * a.value_dim,)
        q, k, v = (x[:, at : at + width] for at, width in zip(self.starts, widths, strict=True))
        return dict(
            a=a, q=q, k=k, v=v, decay=cast(self.decay), beta=cast(self.beta), config=config,
            **{name: w.to(DEVICE, torch.float32) for name, w in self.owned.items()},
            state=self.state.to(DEVICE, torch.float32),
            conv=ShortConv(
                cast(self.conv_weight), cast(self.window).clone(), self.starts, bias=cast(self.conv_bias)
            ),
        )  # fmt: skip

    def output(self, dtype):
        """Poisoned output, and the norm's arguments."""
        out = torch.full((self.x.shape[0], self.gate.shape[1]), float("nan"), dtype=dtype, device=DEVICE)
        norm = OutputNorm(
            EPS,
            None if self.norm["weight"] == "none" else self.norm_weight.to(DEVICE, dtype),
            one_plus=self.norm["weight"] == "one_plus",
            gate=None if self.norm["gate"] == "none" else self.gate.to(DEVICE, dtype),
            activation=self.norm["gate"],
            gate_order=self.norm["gate_order"],
        )
        return dict(out=out, norm=norm)


def scratch(problem):
    return workspace(problem.a, len(problem.lengths), DEVICE)


def holds(tested, plain, exact, dtype):
    """The house's precision gate, over the entries that anybody wrote."""
    written = ~exact.isnan()
    tested, plain, exact = tested.cpu()[written], plain[written], exact[written]
    bound = ALLOWED_RATIO * relative_l2(plain, exact) + torch.finfo(dtype).eps / 2
    return relative_l2(tested, exact) <= bound


FUSED = {
    "kda": (dict(KDA, key_heads=2, value_heads=2), dict(gate="sigmoid")),
    "gdn": (GDN, dict(gate="silu", weight="one_plus")),
    "mamba-2": (MAMBA2, dict(v_first=True, bias=True, gate="silu", gate_order="before_norm")),
    "no gate": (GDN, dict(weight="none")),
}


@pytest.mark.parametrize("dtype", ON_BOTH)
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("lengths", [[1, 1, 1], [5, 0, 2]], ids=["decode", "verify"])
def test_fused_equals_convolution_recurrence_and_norm(name, lengths, dtype):
    attributes, options = FUSED[name]
    p = Problem(attributes, lengths, [3, 0, 0], **options).rounded(dtype)
    exact, plain = p.reference(torch.float64), p.reference(dtype)
    given_, result, shared = p.arguments(dtype), p.output(dtype), scratch(p)
    phase = "decode" if lengths == [1, 1, 1] else "verify"
    launch(**given_, **result, batch=p.batch(phase=phase, device=DEVICE), scratch=shared)
    assert not shared.tickets.any(), "tickets go back to zero for the next launch"
    assert not result["out"].isnan().any()
    # The reference begins the empty sequence with zeros; the launch leaves its slot alone.
    for tested, twin, truth in zip((given_["state"], given_["conv"].window), plain[1:], exact[1:], strict=True):
        used = [slot for slot, n in zip(p.slots, lengths, strict=True) if n]
        left = [slot for slot in range(truth.shape[0]) if slot not in used]
        assert holds(tested[used], twin[used], truth[used], dtype)
        assert tested[left].isnan().all(), "slots of nobody, or of a sequence without tokens, are not written"
    assert holds(result["out"], plain[0], exact[0], dtype)


@pytest.mark.parametrize("dtype", ON_BOTH)
@pytest.mark.parametrize("name", ["gdn", "mamba-2"])
def test_heads_cut_into_tiles_share_their_window_and_norm(name, dtype):
    attributes, options = FUSED[name]
    p = Problem(attributes, [1, 0, 1], [3, 5, 0], **options).rounded(dtype)
    whole, cut, shared = p.arguments(dtype), p.arguments(dtype), scratch(p)
    results = [p.output(dtype) for _ in range(2)]
    outs = [result["out"] for result in results]
    batch = p.batch(phase="decode", device=DEVICE)
    launch(**whole, **results[0], batch=batch, scratch=shared)
    shared.outputs.fill_(float("nan"))
    cut["config"] = {"tile": 64, "part": 2, "num_warps": 4, "maxnreg": 0, "first": 0}
    launch(**cut, **results[1], batch=batch, scratch=shared)
    assert not shared.tickets.any()
    assert torch.equal(whole["conv"].window.nan_to_num(), cut["conv"].window.nan_to_num())
    # Columns are independent of each other; a GPU sums rows in another order when a tile has another shape.
    roundings = 0 if INTERPRETED else 16 * torch.finfo(dtype).eps
    used = p.slots[::2]
    assert relative_l2(cut["state"][used], whole["state"][used]) <= roundings
    assert relative_l2(outs[1], outs[0]) <= roundings


@pytest.mark.gpu
@pytest.mark.parametrize("config", triton_decode.SPACE.configs, ids=str)
def test_every_configuration_computes_the_same_under_load(config):
    """Many programs at once, several times: what the last of them finishes, it finishes of what all have left."""
    wide = dict(GDN, key_heads=4, value_heads=8, key_dim=128, value_dim=128)
    p = Problem(wide, [1] * 96, [3] * 96, gate="silu").rounded(torch.bfloat16)
    batch, shared = p.batch(phase="decode", device=DEVICE), scratch(p)
    first, result = p.arguments(torch.bfloat16), p.output(torch.bfloat16)
    launch(**first, **result, batch=batch, scratch=shared)
    for _ in range(4):
        again, other = p.arguments(torch.bfloat16, config), p.output(torch.bfloat16)
        shared.outputs.fill_(float("nan"))
        launch(**again, **other, batch=batch, scratch=shared)
        assert not shared.tickets.any()
        assert torch.equal(first["conv"].window.nan_to_num(), again["conv"].window.nan_to_num())
        assert relative_l2(again["state"][p.slots], first["state"][p.slots]) <= 16 * torch.finfo(torch.float32).eps
        assert relative_l2(other["out"], result["out"]) <= torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("attributes", [KDA, GDN], ids=["kda", "gdn"])
@pytest.mark.parametrize("dtype", ON_BOTH)
def test_verify_then_commit_is_decoding_the_accepted_tokens(attributes, dtype):
    lengths, contexts = [2, 2, 1], [2, 0, 5]
    p = Problem(attributes, lengths, contexts, gate="sigmoid").rounded(dtype)
    batch = p.batch(device=DEVICE)
    starts = [0, 2, 4]
    decoded, outputs = p.arguments(dtype), []
    history = [(decoded["state"].clone(), decoded["conv"].window.clone())]
    for t in range(2):
        rows = [start + min(t, n - 1) for start, n in zip(starts, lengths, strict=True)]
        now = decoded | {
            name: decoded[name][rows] for name in ("q", "k", "v", "decay", "beta") if decoded[name] is not None
        }
        result = p.output(dtype)
        norm = OutputNorm(EPS, result["norm"].weight, gate=result["norm"].gate[rows], activation="sigmoid")
        step = p.batch([1, 1, 1], [c + t for c in contexts], phase="decode", device=DEVICE)
        launch(**now, out=result["out"][:3], norm=norm, batch=step, scratch=scratch(p))
        outputs.append(result["out"][:3])
        history.append((decoded["state"].clone(), decoded["conv"].window.clone()))
    drafted, result = p.arguments(dtype), p.output(dtype)
    before = [drafted["state"].clone(), drafted["conv"].window.clone()]
    triton_verify.verify(**drafted, **result, batch=batch)
    for now, then in zip((drafted["state"], drafted["conv"].window), before, strict=True):
        assert torch.equal(now.nan_to_num(), then.nan_to_num()), "verify moves nothing"
    # What contraction of multiplies and adds may change: an element's four operations of a token.
    roundings = 0 if INTERPRETED else 4 * 2 * torch.finfo(torch.float32).eps
    rounding = 0 if INTERPRETED else torch.finfo(dtype).eps
    for s, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        for t in range(n):
            assert relative_l2(result["out"][start + t], outputs[t][s]) <= rounding
    for accepted in ([0, 1, 0], [1, 2, 1], [2, 0, 1]):
        committed = p.arguments(dtype)
        limits = torch.tensor(accepted, device=DEVICE)
        triton_verify.commit(**committed, batch=batch, accepted=limits, scratch=scratch(p))
        for slot, n in zip(p.slots, accepted, strict=True):
            state, window = (x[slot] for x in history[n])
            assert relative_l2(committed["state"][slot].nan_to_num(), state.nan_to_num()) <= roundings
            assert torch.equal(committed["conv"].window[slot].nan_to_num(), window.nan_to_num())


@pytest.mark.parametrize("dtype", ON_BOTH)
def test_repeated_launches_give_the_same_bits(dtype):
    p = Problem(GDN, [1, 1, 1], [3, 0, 1], gate="silu").rounded(dtype)
    batch = p.batch(phase="decode", device=DEVICE)
    runs = []
    for _ in range(2):
        given_, result = p.arguments(dtype), p.output(dtype)
        launch(**given_, **result, batch=batch, scratch=scratch(p))
        runs.append((result["out"], given_["state"].nan_to_num(), given_["conv"].window.nan_to_num()))
    for other in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("dtype", ON_BOTH)
def test_padded_rows_and_sequences_are_not_touched(dtype):
    p = Problem(KDA, [1, 1, 1], [3, 4, 5]).rounded(dtype)
    given_, result = p.arguments(dtype), p.output(dtype)
    batch = p.batch(phase="decode", device=DEVICE)
    # A graph captured for three sequences replayed for one: the others have no tokens and stand at any slot.
    batch.cu_seqlens[2:] = 1
    batch.slots[1:] = p.slots[0]
    before = given_["state"].clone()
    launch(**given_, out=result["out"], batch=batch, scratch=scratch(p))
    assert not result["out"][0].isnan().any() and result["out"][1:].isnan().all()
    changed = (given_["state"].nan_to_num() != before.nan_to_num()).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [p.slots[0]]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_sequence_harms_no_other(poison):
    p = Problem(KDA, [1, 1], [3, 3]).rounded(torch.float32)
    clean, harmed = p.arguments(torch.float32), p.arguments(torch.float32)
    harmed["q"][0], harmed["v"][0], harmed["decay"][0] = poison, poison, poison
    outs = [p.output(torch.float32)["out"] for _ in range(2)]
    for given_, out in zip((clean, harmed), outs, strict=True):
        launch(**given_, out=out, batch=p.batch(phase="decode", device=DEVICE), scratch=scratch(p))
    assert not outs[1][0].isfinite().all()
    assert torch.equal(outs[0][1], outs[1][1])
    assert torch.equal(clean["state"][p.slots[1]], harmed["state"][p.slots[1]])


@triton.jit
def offsets_kernel(slots, out, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    base, offsets = state_offsets(tl.load(slots), stride, 1, rows, columns, ROWS, COLUMNS)
    tl.store(out + rows[:, None, None] * COLUMNS + columns[None, :, :], base + offsets)


def test_offsets_of_large_pools_have_64_bits():
    slots = torch.tensor([70_000], device=DEVICE)
    out = torch.empty(4, 8, dtype=torch.int64, device=DEVICE)
    stride = 64 * 128 * 128
    offsets_kernel[(1,)](slots, out, stride, ROWS=4, COLUMNS=8)
    assert out.min() > 2**31
    assert torch.equal(out.cpu().flatten(), 70_000 * stride + 32 + torch.arange(32))


def test_state_in_bfloat16_and_its_drift():
    """The kernel rounds the state once a step. Rounding errors fade with the state: over 2000 steps they stay where
    they are after 200, a few units in the last place of bfloat16."""
    a = KIND.parse(KDA)
    generator = torch.Generator().manual_seed(1)
    q, k, v, decay, beta = draw_ports(a, 2000, generator)
    weights = {name: w.float() for name, w in draw_weights(a, generator).items()}
    ports = [x.float() for x in (q, k, v, decay, beta)]
    half = torch.zeros(1, 1, 16, 8, dtype=torch.bfloat16)
    tested, full = half.to(DEVICE), half.float()
    reference = resolve("recurrence", "torch")
    drift = {}
    for t in range(2000):
        now = [x[t : t + 1] for x in ports]
        batch = Batch.pack([[0]], context_lens=[1], slots=[0], pages=[[]], phase="decode")
        wide = half.float()
        rounded = reference(a, *now, **weights, batch=batch, state=wide)
        half = wide.bfloat16()
        reference(a, *now, **weights, batch=batch, state=full)
        if t < 5:
            out = torch.empty(1, 8, device=DEVICE)
            on_device = Batch.pack([[0]], context_lens=[1], slots=[0], pages=[[]], phase="decode", device=DEVICE)
            owned = {name: w.to(DEVICE) for name, w in weights.items()}
            launch(a, *(x.to(DEVICE) for x in now), **owned, batch=on_device, state=tested, out=out)
            # float32 sums in another order may round a few elements to the neighbouring bfloat16.
            assert relative_l2(tested, half.double()) < torch.finfo(torch.bfloat16).eps
            assert relative_l2(out, rounded.double()) < torch.finfo(torch.bfloat16).eps
        drift[t] = relative_l2(half, full)
    early, late = (sum(drift[t] for t in range(at, at + 100)) / 100 for at in (200, 1900))
    assert late < 2 * early and late < 4 * torch.finfo(torch.bfloat16).eps, (early, late)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=3), st.integers(0, 2**31))
def test_a_pack_equals_each_sequence_alone(lengths, seed):
    p = Problem(GDN, lengths, [s % 2 * 3 for s in range(len(lengths))], seed=seed).rounded(torch.float32)
    packed, result = p.arguments(torch.float32), p.output(torch.float32)
    launch(**packed, out=result["out"], batch=p.batch(device=DEVICE), scratch=scratch(p))
    start = 0
    for s, n in enumerate(lengths):
        alone, out = p.arguments(torch.float32), p.output(torch.float32)["out"][:n]
        now = alone | {name: alone[name][start : start + n] for name in ("q", "k", "v", "decay", "beta")}
        batch = Batch.pack(
            [[0] * n], context_lens=p.contexts[s : s + 1], slots=p.slots[s : s + 1], pages=[[]], phase="verify",
            device=DEVICE,
        )  # fmt: skip
        launch(**now, out=out, batch=batch, scratch=scratch(p))
        assert torch.equal(out, result["out"][start : start + n])
        slot = p.slots[s]
        assert torch.equal(alone["state"][slot].nan_to_num(), packed["state"][slot].nan_to_num())
        assert torch.equal(alone["conv"].window[slot].nan_to_num(), packed["conv"].window[slot].nan_to_num())
        start += n


def test_refusals_before_anything_runs():
    p = Problem(GDN, [1, 1], [3, 3], gate="sigmoid").rounded(torch.float32)
    batch = p.batch(phase="decode", device=DEVICE)
    wrong = {
        "several programs share one window": dict(scratch=None),
        "state of shape": dict(state=torch.zeros(4, 2, 16, 9, device=DEVICE)),
        "state in": dict(state=torch.zeros(4, 2, 16, 8, dtype=torch.float16, device=DEVICE)),
        "needs beta": dict(beta=None),
        "needs no D": dict(D=torch.zeros(2, device=DEVICE)),
        "q in": dict(q=torch.zeros(2, 16, dtype=torch.float64, device=DEVICE)),
        "slots are contiguous": dict(state=torch.zeros(4, 2, 16, 9, device=DEVICE)[..., :8]),
        "an output to normalise": dict(out=None),
        "at most one token": dict(batch=Batch.pack([[0, 0]], context_lens=[1], slots=[0], pages=[[]], phase="decode")),
    }
    for words, change in wrong.items():
        given_ = p.arguments(torch.float32) | p.output(torch.float32) | dict(batch=batch, scratch=scratch(p)) | change
        before = p.arguments(torch.float32)["state"]
        with pytest.raises(ContractError, match=words):
            launch(**given_)
        if given_["state"].shape == before.shape and "state" not in change:
            assert torch.equal(given_["state"].nan_to_num(), before.nan_to_num())
    drafted = p.arguments(torch.float32) | p.output(torch.float32)
    one = Batch.pack([[0] * 17], context_lens=[1], slots=[0], pages=[[]], phase="verify", device=DEVICE)
    drafted["q"] = torch.zeros(17, 16, device=DEVICE)
    with pytest.raises(ContractError, match="at most 16 tokens"):
        triton_verify.verify(**drafted, batch=one)


def test_contract_takes_a_gpu_with_triton_only():
    facts = {
        "attribute": KIND.parse(KDA).model_dump(),
        "phase": {"phase": "decode"},
        "dtype": {"activation": "bfloat16"},
    }
    assert not TRITON.refusals(facts | {"device": {"type": "cuda", "triton": True}})
    assert [r.clause for r in TRITON.refusals(facts | {"device": {"type": "cpu", "triton": False}})] == [
        "device",
        "triton",
    ]
    assert (
        triton_decode.SPACE.config(triton_decode.bucket(KIND.parse(KDA), 8, whole=False)) in triton_decode.SPACE.configs
    )
