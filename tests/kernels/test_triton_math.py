"""Single instructions stand for what their plain forms give: over all bytes, and at the ends of their ranges."""

import pytest
import torch
import triton
import triton.language as tl

from day0.kernels.common import triton_math

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@triton.jit
def _part(pairs, even, odd, N: tl.constexpr, FLOAT8: tl.constexpr):
    at = tl.arange(0, N)
    if FLOAT8:
        low, high = triton_math.pairs_of_float8(tl.load(pairs + at))
    else:
        low, high = triton_math.pairs_of_int8(tl.load(pairs + at))
    tl.store(even + at, low)
    tl.store(odd + at, high)


@triton.jit
def _each(x, exp2, log2, reciprocal, rounded, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.store(exp2 + at, triton_math.exp2_fast(values))
    tl.store(log2 + at, triton_math.log2_fast(values))
    tl.store(reciprocal + at, triton_math.reciprocal_fast(values))
    tl.store(rounded + at, triton_math.rounded(values, tl.bfloat16))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_pairs_are_parted(dtype, device):
    first, second = torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij")
    stored = torch.stack([first, second], dim=-1).to(torch.uint8).view(dtype).to(device)
    even, odd = (torch.empty(256 * 256, dtype=torch.float16, device=device) for _ in range(2))
    pairs = stored.view(torch.int16).flatten()
    _part[(1,)](pairs, even, odd, 256 * 256, dtype == torch.float8_e4m3fn, num_warps=8)
    want = stored.cpu().float().reshape(-1, 2)
    if device == "cpu":
        # The interpreter reads e4m3's NaN as the number that its bits would be.
        want = torch.where(want.isnan(), torch.copysign(torch.tensor(480.0), want), want)
    for got, column in ((even, 0), (odd, 1)):
        torch.testing.assert_close(got.cpu().float(), want[:, column], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_functions_and_rounding(device):
    x = torch.cat([torch.rand(1000) + 0.5, torch.rand(1000) * 60 + 1e-3, 2.0 ** torch.arange(-24.0, 24.0)]).to(device)
    x = x[:2048]
    outs = [torch.empty_like(x, dtype=t) for t in (torch.float32,) * 3 + (torch.bfloat16,)]
    _each[(1,)](x, *outs, 2048)
    exact = x.double()
    # PTX ISA: ex2.approx.ftz within 2^-22.5 of the result, lg2.approx.ftz within 2^-22 of it or of 1, rcp within 1 ulp;
    # the argument's own place is 2^-23 of up to 60, which 2^x multiplies by ln 2.
    small = exact < 128
    torch.testing.assert_close(outs[0][small].double(), torch.exp2(exact)[small], rtol=2**-21, atol=0)
    torch.testing.assert_close(outs[1].double(), exact.log2(), rtol=2**-21, atol=2**-21)
    torch.testing.assert_close(outs[2].double(), 1 / exact, rtol=2**-22, atol=0)
    ends = torch.tensor([-0.0, -1.5, -126.0, -140.0, -2000.0, -torch.inf, torch.nan, torch.inf], device=device)
    _each[(1,)](ends.repeat(256), *outs, 2048)
    powers = outs[0][:8].tolist()
    assert powers[0] == 1.0 and abs(powers[1] / 2**-1.5 - 1) < 2**-21 and powers[2] == 2.0**-126
    assert 0.0 <= powers[3] <= 2.0**-139 and powers[4] == powers[5] == 0.0
    assert powers[6] != powers[6] and powers[7] == float("inf")
    if device == "cuda":
        halfway = [1.0 + 2**-8, 1.0 + 3 * 2**-8, -3.4e38, torch.inf, torch.nan, 0.0, -0.0, 1e-40]
        values = torch.tensor(halfway, device=device).repeat(256)
        _each[(1,)](values, *outs, 2048)
        torch.testing.assert_close(outs[3], values.bfloat16(), rtol=0, atol=0, equal_nan=True)
        _each[(1,)](x, *outs, 2048)
    # The interpreter cuts digits off.
    assert device == "cpu" or torch.equal(outs[3], x.bfloat16())
