"""Sampling: exactly the allowed tokens are drawn, as often as their probability says, whoever else is in the batch."""

import math

import pytest
import torch

from day0.errors import Day0Error
from day0.kernels.sample.reference import allowed
from day0.kernels.sample.triton_sample import sample

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
V = 37
FULL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "position": 0}
DTYPES = {"top_k": torch.int32, "seed": torch.int64, "position": torch.int64}


def draw(logits, device="cpu", **options):
    """Tokens for rows of logits; an option may be one number for all rows, or one for each."""
    rows = logits.shape[0]
    given = {
        name: torch.as_tensor(value, dtype=DTYPES.get(name, torch.float32)).expand(rows).contiguous().to(device)
        for name, value in (FULL | options).items()
    }
    out = torch.full((rows,), -7, device=device)
    sample(logits.to(device), out, **given)
    return out.cpu()


def expect(logits, **options):
    rest = {name: (FULL | options)[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    mask, scaled = allowed(logits, **rest)
    return mask, torch.softmax(scaled.masked_fill(~mask, -math.inf), dim=-1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_k": 1},
        {"top_k": V},
        {"top_p": 0.7},
        {"top_p": 1e-9},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"temperature": 1.7, "top_k": 9, "top_p": 0.8, "min_p": 0.2},
    ],
    ids=str,
)
def test_draws_what_is_allowed_as_often_as_it_should(options, device):
    logits = torch.randn(V, generator=torch.Generator().manual_seed(1))
    draws = 40 if device == "cpu" else 4000  # interpreted rows are slow
    tokens = draw(logits.expand(draws, V).contiguous(), device, **options, seed=torch.arange(draws))
    mask, p = expect(logits, **options)
    assert mask[tokens].all()
    counts = torch.bincount(tokens, minlength=V)[mask]
    statistic = float(((counts - draws * p[mask]) ** 2 / (draws * p[mask])).sum())
    freedom = int(mask.sum()) - 1
    # A chi-square variable lies less than five standard deviations above its mean.
    assert statistic <= freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", [1, 2, 4, 36])
def test_of_equal_logits_the_first_are_kept(k, device):
    tokens = draw(torch.zeros(24, V), device, top_k=k, seed=torch.arange(24))
    assert set(tokens.tolist()) <= set(range(k)) and (k > 4 or len(set(tokens.tolist())) == k)
    tokens = draw(torch.zeros(24, V), device, top_p=(k - 0.5) / V, seed=torch.arange(24))
    assert set(tokens.tolist()) <= set(range(k)) and (k > 4 or len(set(tokens.tolist())) == k)
    assert draw(torch.zeros(3, V), device, temperature=0.0).tolist() == [0, 0, 0]


def test_top_p_works_on_what_top_k_left():
    logits = torch.tensor([[3.0, 3.0, 3.0, 3.0, 2.9, 2.9]]).expand(24, 6).contiguous()
    # Of the two kept by top_k each has half: 0.5 needs one, a little more needs both.
    assert set(draw(logits, top_k=2, top_p=0.5, seed=torch.arange(24)).tolist()) == {0}
    assert set(draw(logits, top_k=2, top_p=0.51, seed=torch.arange(24)).tolist()) == {0, 1}


@pytest.mark.parametrize("device", DEVICES)
def test_batch_mates_and_other_rows_change_nothing(device):
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(2))
    options = {"temperature": [0.0, 0.5, 1.0, 1.0, 2.0, 1.0], "top_k": [0, 3, 0, 9, 0, 1], "top_p": 0.9}
    options |= {"seed": [5, 6, 7, 8, 9, 10], "position": [1, 2, 3, 4, 5, 6]}
    together = draw(logits, device, **options)
    assert torch.equal(draw(logits, device, **options), together)
    for row in range(6):
        alone = {name: value[row : row + 1] if isinstance(value, list) else value for name, value in options.items()}
        assert draw(logits[row : row + 1], device, **alone) == together[row : row + 1]


def test_seed_and_position_draw_anew():
    logits = torch.zeros(24, V)
    by_seed = draw(logits, seed=torch.arange(24))
    by_position = draw(logits, position=torch.arange(24))
    for tokens in (by_seed, by_position):
        assert len(set(tokens.tolist())) > 8
    # A large seed's upper half counts too.
    assert not torch.equal(draw(logits, seed=torch.arange(24) << 33), draw(logits, seed=torch.arange(24) << 34))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nan_and_infinities(dtype, device):
    rows = torch.randn(4, V, generator=torch.Generator().manual_seed(3))
    rows[0, :] = float("nan")
    rows[1, 3:] = -math.inf
    rows[2, ::2] = float("nan")
    rows[3, :] = -math.inf
    for seed in range(2):
        tokens = draw(rows.to(dtype), device, seed=seed, top_p=0.95)
        assert tokens[0] == -1 and tokens[1] in (0, 1, 2) and tokens[2] % 2 == 1 and tokens[3] == -1


@pytest.mark.parametrize("size", [1, 2, 2047, 2048, 2049])
def test_vocabularies_around_a_block(size):
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(4))
    assert torch.equal(draw(logits, temperature=0.0), logits.argmax(dim=1))
    logits[1, -1] = 50.0
    assert draw(logits, top_k=min(3, size), top_p=0.9)[1] == size - 1


def test_padding_of_wider_rows_is_never_read():
    wide = torch.full((3, V + 5), float("nan"))
    wide[:, :V] = torch.randn(3, V, generator=torch.Generator().manual_seed(5))
    wide[:, V:] = math.inf
    assert torch.equal(draw(wide[:, :V], temperature=0.0), wide[:, :V].argmax(dim=1))


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "seed", "position", "out", "logits"])
def test_refused_before_anything_runs(name):
    logits = torch.zeros(2, V)
    given = {n: torch.zeros(2, dtype=DTYPES.get(n, torch.float32)) for n in FULL}
    given |= {"logits": logits, "out": torch.full((2,), -7)}
    bad = given | {name: given[name][:1].double() if name != "logits" else logits.double()}
    with pytest.raises(Day0Error, match=name):
        sample(**bad)
    assert (given["out"] == -7).all()


def test_reference_by_hand():
    logits = torch.tensor([2.0, 1.0, 2.0, 0.0]).log()

    def kept(**options):
        rest = {name: (FULL | options)[name] for name in ("temperature", "top_k", "top_p", "min_p")}
        return allowed(logits, **rest)[0].nonzero().flatten().tolist()

    assert kept() == [0, 1, 2] and kept(temperature=0.0) == [0] and kept(top_k=1) == [0] and kept(top_k=2) == [0, 2]
    assert kept(top_p=0.4) == [0] and kept(top_p=0.41) == [0, 2] and kept(min_p=0.5) == [0, 1, 2]
    assert kept(min_p=0.51) == [0, 2] and kept(temperature=0.5, min_p=0.3) == [0, 2]
