"""Quantisation: bit by bit what the reference stores, within the format's error, in the layouts that readers take."""

import pytest
import torch

from day0.kernels.common.triton_launch import ContractError
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.quantize.reference import dequantize, quantize_groups, quantize_tiles
from day0.kernels.quantize.triton_cases import CASES, FORMS, SCALES, differing, exact, plain
from day0.kernels.quantize.triton_quantize import quantize, quantize_into

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_stores_what_the_reference_stores(case, dtype, device):
    findings = case.run(dtype, device, 0)
    assert len(findings) == 8 and [f for f in findings if not f.holds] == []


@pytest.mark.parametrize("form", FORMS)
def test_groups_read_back_within_half_a_unit(form):
    """The exponent is the smallest that holds the largest number, and every number is off by half a unit at most."""
    x = plain(torch.Generator().manual_seed(1))
    values, exponents = quantize_groups(x, form)
    back = dequantize(values, exponents)
    scale = torch.exp2(exponents.double() - 127).repeat_interleave(32, dim=1)
    largest = x.double().abs().unflatten(-1, (-1, 32)).amax(-1).repeat_interleave(32, dim=1)
    reach = 448.0 if form == "e4m3" else 127.0
    assert (largest <= reach * scale).all() and (largest > reach * scale / 2).all()
    # Of e4m3 half a unit is 1/16 of the number's power of two, and 2^-10 below the normal numbers.
    number = (x.double() / scale).abs()
    unit = torch.exp2(torch.floor(torch.log2(number.clamp(min=2.0**-6)))) / 8 if form == "e4m3" else 1.0
    assert ((back - x).abs() <= scale * unit / 2).all()


@pytest.mark.parametrize("form", FORMS)
def test_tiles_read_back_within_half_a_unit(form):
    x = plain(torch.Generator().manual_seed(2))
    values, scales = quantize_tiles(x, form)
    back, scale = dequantize(values, scales).double(), scales.double().repeat_interleave(128, dim=1)
    number = (x.double() / scale).abs()
    unit = torch.exp2(torch.floor(torch.log2(number.clamp(min=2.0**-6)))) / 8 if form == "e4m3" else 1.0
    # One rounding of float32 in the quotient and one in the product beside that of the format.
    assert ((back - x).abs() <= scale * (unit / 2 + 2 * number * 2.0**-23)).all()
    peak = x.abs().unflatten(-1, (-1, 128)).max(-1)
    found = back.unflatten(-1, (-1, 128)).gather(-1, peak.indices[..., None]).squeeze(-1)
    torch.testing.assert_close(found.abs(), peak.values.double(), rtol=2.0**-22, atol=0)


@pytest.mark.parametrize(("quantiser", "width"), [(quantize_groups, 32), (quantize_tiles, 128)])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_reads_as_nan_and_the_rest_as_ever(form, quantiser, width):
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(3))
    sound = dequantize(*quantiser(x, form))
    spoilt = x.clone()
    spoilt[0, 40], spoilt[1, 250], spoilt[2, 0] = float("nan"), float("inf"), -float("inf")
    back = dequantize(*quantiser(spoilt, form))
    bad = (~spoilt.isfinite()).unflatten(-1, (-1, width)).any(-1).repeat_interleave(width, dim=1)
    assert torch.equal(back.isnan(), bad) and torch.equal(back[~bad], sound[~bad])


@pytest.mark.parametrize("form", FORMS)
def test_by_hand(form):
    x = torch.zeros(1, 128)
    x[0, :4] = torch.tensor([3.0, -1.5, 0.0, 2.0**-30])
    values, exponents = quantize_groups(x, form)
    assert exponents[0].tolist() == ([127 - 7, 1, 1, 1] if form == "e4m3" else [127 - 5, 1, 1, 1])
    assert dequantize(values, exponents)[0, :4].tolist() == [3.0, -1.5, 0.0, 0.0]
    values, scales = quantize_tiles(x, form)
    assert scales.shape == (1, 1) and float(scales) == pytest.approx(3 / (448 if form == "e4m3" else 127))
    assert values.float()[0, :4].tolist() == ([448.0, -224.0, 0.0, 0.0] if form == "e4m3" else [127.0, -64.0, 0.0, 0.0])


def _paged(count, channels, device, scales, form):
    """Three sequences of 2, 0 and 3 tokens, one token of padding; pools that hold 3 everywhere."""
    batch = Batch.pack(
        [[0] * 2, [], [0] * 3],
        context_lens=[PAGE_TOKENS - 1, 5, 0],
        slots=[0, 1, 2],
        pages=[[3, 0], [1], [2]],
        device=device,
    )
    ports = tuple(
        torch.randn(6, channels, generator=torch.Generator().manual_seed(4 + i)).to(device) for i in range(count)
    )
    kept = [exact(port, form, scales) for port in ports]
    pools = [
        [
            torch.full((4 * PAGE_TOKENS, t.shape[1]), 3, dtype=torch.uint8 if t.element_size() == 1 else t.dtype)
            for t in pair
        ]
        for pair in kept
    ]
    pools = [
        [p.view(t.dtype).to(device) for p, t in zip(one, pair, strict=True)]
        for one, pair in zip(pools, kept, strict=True)
    ]
    where = [3 * PAGE_TOKENS + PAGE_TOKENS - 1, 0, 2 * PAGE_TOKENS, 2 * PAGE_TOKENS + 1, 2 * PAGE_TOKENS + 2]
    return batch, ports, pools, kept, where


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_writes_each_token_to_its_place_and_nothing_else(form, scales, count, device):
    batch, ports, pools, kept, where = _paged(count, 128 if scales == torch.uint8 else 256, device, scales, form)
    before = [[t.clone() for t in pair] for pair in pools]
    quantize_into(ports, tuple(p[0] for p in pools), tuple(p[1] for p in pools), batch=batch)
    untouched = [i for i in range(4 * PAGE_TOKENS) if i not in where]
    for pair, old, expected in zip(pools, before, kept, strict=True):
        for pool, was, wanted in zip(pair, old, expected, strict=True):
            raw = [t.cpu().view(torch.uint8) for t in (pool, was, wanted)]
            assert torch.equal(raw[0][where], raw[2][:5]) and torch.equal(raw[0][untouched], raw[1][untouched])


@pytest.mark.parametrize("device", DEVICES)
def test_rows_wider_than_a_block_and_views(device):
    wide = torch.randn(3, 1024 + 256 + 64, generator=torch.Generator().manual_seed(5))
    x = wide[:, 32:-32].to(device)
    values = torch.full((3, 1300), 3, dtype=torch.uint8, device=device)
    scales = torch.full((3, 50), 3, dtype=torch.uint8, device=device)
    quantize(x, values[:, 10:1290], scales[:, 5:45])
    expected = quantize_groups(x.cpu(), "e4m3")
    assert differing(values[:, 10:1290].contiguous(), expected[0]) == 0
    assert differing(scales[:, 5:45].contiguous(), expected[1]) == 0
    assert (values[:, :10] == 3).all() and (values[:, 1290:] == 3).all() and (scales[:, 45:] == 3).all()
    quantize(x[:0], values[:0, :1280], scales[:0, :40])


def test_refusals_come_before_the_launch():
    x, values, scales = torch.ones(2, 256), torch.full((2, 256), 3, dtype=torch.int8), torch.full((2, 2), 3.0)
    for changes, message in (
        ({"x": x.double()}, "x in"),
        ({"x": x[:, :200]}, "a multiple of 128 channels, not 200"),
        ({"values": values.int()}, "values in"),
        ({"values": values[:, :128]}, "values of shape"),
        ({"values": values[:1]}, "values of shape"),
        ({"scales": scales[:, :1]}, "scales of shape"),
        ({"scales": scales.half()}, "scales in"),
        ({"scales": torch.ones(2, 2, dtype=torch.uint8)}, "scales of shape"),
    ):
        given = {"x": x, "values": values, "scales": scales} | changes
        with pytest.raises(ContractError, match=message):
            quantize(**given)
    batch, ports, pools, _, _ = _paged(2, 256, "cpu", torch.float32, "int8")
    with pytest.raises(ContractError, match="both ports in one form"):
        quantize_into(ports, (pools[0][0], pools[1][0].view(torch.uint8)), (pools[0][1], pools[1][1]), batch=batch)
    with pytest.raises(ContractError, match="one or two ports"):
        quantize_into(ports, (pools[0][0],), (pools[0][1],), batch=batch)
    assert (values == 3).all() and (scales == 3).all() and (pools[0][1] == 3).all()
