"""Sampling: exactly the token that the reference draws with the same random numbers, whoever else is in the batch."""

import math

import pytest
import torch
import triton
import triton.language as tl

from day0.errors import Day0Error
from day0.kernels.sample.reference import allowed
from day0.kernels.sample.triton_cases import CASES
from day0.kernels.sample.triton_sample import _exponential, sample, workspace

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
V = 70  # two parts of a row where kernels are interpreted
FULL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "position": 0}
DTYPES = {"top_k": torch.int32, "seed": torch.int64, "position": torch.int64}
OPTIONS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": V},
    {"top_p": 0.7},
    {"top_p": 1e-9},
    {"min_p": 0.3},
    {"min_p": 1.0},
    {"temperature": 1.7, "top_k": 19, "top_p": 0.8, "min_p": 0.1},
]
WITH_TIES = [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.5}, OPTIONS[-1]]


def draw(logits, device="cpu", **options):
    """Tokens for rows of logits; an option may be one number for all rows, or one for each."""
    rows = logits.shape[0]
    given = {
        name: torch.as_tensor(value, dtype=DTYPES.get(name, torch.float32)).expand(rows).contiguous().to(device)
        for name, value in (FULL | options).items()
    }
    out = torch.full((rows,), -7, device=device)
    scratch = torch.full((workspace(*logits.shape),), float("nan"), device=device)
    sample(logits.to(device), out, scratch=scratch, **given)
    return out.cpu()


@triton.jit(do_not_specialize=["seed", "position"])
def _numbers(out, seed, position, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    group = tl.arange(0, GROUPS)
    e = _exponential(group, seed.to(tl.int64), position, GROUP)
    tl.store(out + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], e)


def numbers(count, device, seed, position=0):
    """The exponential numbers of the first tokens."""
    out = torch.empty(triton.next_power_of_2(max(count, 16)), device=device)
    _numbers[(1,)](out, seed, position, GROUPS=out.numel() // 16, GROUP=16)
    return out[:count].cpu()


def expect(logits, device, **options):
    """The allowed token with the largest probability / number; without a temperature the best."""
    chosen = FULL | options
    seed, position = chosen.pop("seed"), chosen.pop("position")
    mask, scaled = allowed(logits, **chosen)
    if chosen["temperature"] == 0.0:
        return int(mask.nonzero())
    e = numbers(len(logits), device, seed, position).double()
    return int((scaled - e.log()).masked_fill(~mask, -math.inf).argmax())


def together(options):
    return {name: [(FULL | one)[name] for one in options] for name in FULL}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ties", [False, True])
def test_draws_what_the_reference_draws(ties, device):
    g = torch.Generator().manual_seed(1)
    chosen = OPTIONS * 200 if device == "cuda" else WITH_TIES if ties else OPTIONS  # interpreted rows are slow
    options = [one | {"seed": i, "position": 3 * i} for i, one in enumerate(chosen)]
    logits = 2 * torch.randn(len(options), V, generator=g)
    if ties:
        logits = logits.round()
    tokens = draw(logits, device, **together(options))
    assert tokens.tolist() == [expect(row, device, **one) for row, one in zip(logits, options, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_are_exponential(device):
    """By the Kolmogorov-Smirnov distance, which stays below 1.95 / sqrt(n) with probability 0.999."""
    n = 1024
    for seed, position in ((3, 0), (3, 1), (3 << 33, 0)):
        e = numbers(n, device, seed, position).double().sort().values
        distance = (1 - torch.exp(-e) - (torch.arange(n) + 0.5) / n).abs().max() + 0.5 / n
        assert (e > 0).all() and distance < 1.95 / math.sqrt(n)
    one, other = numbers(n, device, 3), numbers(n, device, 3, 1)
    assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1]) < 4 / math.sqrt(n)
    assert abs(torch.corrcoef(torch.stack((one[:-1], one[1:])))[0, 1]) < 4 / math.sqrt(n)
    assert not torch.equal(numbers(n, device, 3 << 33), numbers(n, device, 3 << 34)), "a seed's upper half counts"


@pytest.mark.gpu
def test_a_vocabulary_of_a_model():
    """Many parts, long lists of groups; k above and below the number of groups; as often as the probability says."""
    logits = 3 * torch.randn(1, 151_936, generator=torch.Generator().manual_seed(2))
    options = [{"top_k": 50, "top_p": 0.9}, {"top_p": 0.95}, {"top_k": 2000}, {"top_k": 9000, "top_p": 0.5}, {}]
    many = [one | {"seed": i} for one in options for i in range(4)]
    tokens = draw(logits.repeat(len(many), 1), "cuda", **together(many))
    for token, one in zip(tokens.tolist(), many, strict=True):
        chosen = {name: (FULL | one)[name] for name in ("temperature", "top_k", "top_p", "min_p")}
        assert allowed(logits[0], **chosen)[0][token]
    draws = 4096
    counts = torch.bincount(draw(logits.repeat(draws, 1), "cuda", top_k=16, seed=torch.arange(draws)), minlength=1)
    mask, scaled = allowed(logits[0], temperature=1.0, top_k=16, top_p=1.0, min_p=0.0)
    p = torch.softmax(scaled.masked_fill(~mask, -math.inf), dim=-1)[mask]
    counts = torch.nn.functional.pad(counts, (0, len(mask) - len(counts)))
    statistic = float(((counts[mask] - draws * p) ** 2 / (draws * p)).sum())
    # A chi-square variable lies less than five standard deviations above its mean.
    assert counts.sum() == counts[mask].sum() and statistic <= 15 + 5 * math.sqrt(2 * 15)


def test_top_p_works_on_what_top_k_left():
    logits = torch.tensor([[3.0, 3.0, 3.0, 3.0, 2.9, 2.9]]).expand(4, 6).contiguous()
    # Of the two kept by top_k each has half: 0.5 needs one, a little more needs both.
    tokens = draw(logits, top_k=2, top_p=[0.5, 0.51, 0.51, 0.51], seed=torch.arange(4)).tolist()
    assert tokens[0] == 0 and set(tokens[1:]) == {0, 1}


@pytest.mark.parametrize("device", DEVICES)
def test_batch_mates_and_other_rows_change_nothing(device):
    logits = torch.randn(4, V, generator=torch.Generator().manual_seed(2))
    options = {"temperature": [0.0, 0.5, 1.0, 2.0], "top_k": [0, 3, 0, 0], "top_p": 0.9}
    options |= {"seed": [5, 6, 7, 8], "position": [1, 2, 3, 4]}
    tokens = draw(logits, device, **options)
    assert torch.equal(draw(logits, device, **options), tokens)
    for row in range(4):
        alone = {name: value[row : row + 1] if isinstance(value, list) else value for name, value in options.items()}
        assert draw(logits[row : row + 1], device, **alone) == tokens[row : row + 1]


def test_seed_and_position_draw_anew():
    logits = torch.zeros(5, V)
    for tokens in (draw(logits, seed=torch.arange(5)), draw(logits, position=torch.arange(5))):
        assert len(set(tokens.tolist())) > 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nan_and_infinities(dtype, device):
    rows = torch.randn(5, V, generator=torch.Generator().manual_seed(3))
    rows[0, :] = float("nan")
    rows[1, 3:] = -math.inf
    rows[2, ::2] = float("nan")
    rows[3, :] = -math.inf
    rows[4, 66] = math.inf
    tokens = draw(rows.to(dtype), device, top_p=0.95, top_k=[0, 5, 0, 0, 0])
    assert tokens[0] == -1 and tokens[1] in (0, 1, 2) and tokens[2] % 2 == 1 and tokens[3] == -1 and tokens[4] == 66


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", [case for case in CASES if case.name == "one token"])
def test_case(case, device):
    assert [f for f in case.run(torch.float32, device, 0) if not f.holds] == []


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 129])
def test_vocabularies_around_a_part(size):
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(4))
    logits[1, -1] = 50.0
    tokens = draw(logits, temperature=[0.0, 1.0], top_k=min(3, size), top_p=0.9)
    assert tokens.tolist() == [int(logits[0].argmax()), size - 1]


def test_padding_of_wider_rows_is_never_read():
    wide = torch.full((2, V + 5), float("nan"))
    wide[:, :V] = torch.randn(2, V, generator=torch.Generator().manual_seed(5))
    wide[:, V:] = math.inf
    assert torch.equal(draw(wide[:, :V], temperature=0.0), wide[:, :V].argmax(dim=1))


@pytest.mark.parametrize(
    "name", ["temperature", "top_k", "top_p", "min_p", "seed", "position", "out", "logits", "scratch"]
)
def test_refused_before_anything_runs(name):
    given = {n: torch.zeros(2, dtype=DTYPES.get(n, torch.float32)) for n in FULL}
    given |= {"logits": torch.zeros(2, V), "out": torch.full((2,), -7), "scratch": torch.zeros(workspace(2, V))}
    bad = given | {name: given[name][:-1] if name == "scratch" else given[name].double()}
    with pytest.raises(Day0Error, match=name):
        sample(**bad)
    assert (given["out"] == -7).all()


def test_reference_by_hand():
    logits = torch.tensor([2.0, 1.0, 2.0, 0.0]).log()

    def kept(**options):
        rest = {name: (FULL | options)[name] for name in ("temperature", "top_k", "top_p", "min_p")}
        return allowed(logits, **rest)[0].nonzero().flatten().tolist()

    assert kept() == [0, 1, 2] and kept(temperature=0.0) == [0] and kept(top_k=1) == [0] and kept(top_k=2) == [0, 2]
    assert kept(top_p=0.4) == [0] and kept(top_p=0.41) == [0, 2] and kept(min_p=0.49) == [0, 1, 2]
    assert kept(min_p=0.51) == [0, 2] and kept(temperature=0.5, min_p=0.3) == [0, 2]
