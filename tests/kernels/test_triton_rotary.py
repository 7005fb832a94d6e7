"""rotary/triton against float64: the cases of the contract, the cache write, large offsets, packing, refusals."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.kernels.common.conformance import ALLOWED_RATIO, check, relative_l2
from day0.kernels.common.paged import append_tokens
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from day0.kernels.rotary.reference import rotary as reference
from day0.kernels.rotary.schema import RotaryAttributes
from day0.kernels.rotary.triton_cases import CASES
from day0.kernels.rotary.triton_fused import rotary
from day0.kernels.rotary.triton_rotary import device_frequencies, pool_rows, turn, turn_and_remember

ON = [
    pytest.param("cpu", torch.float32, id="cpu-float32"),
    pytest.param("cpu", torch.float16, id="cpu-float16"),
    pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float32, id="cuda-float32", marks=pytest.mark.gpu),
]
NAN = float("nan")
HALF = RotaryAttributes(head_dim=16, rotary_dim=16, theta=1e4)


def pack(lengths, contexts, device="cpu", seed=0):
    """A batch whose pages are handed out in random order."""
    needed = [-(-(n + c) // PAGE_TOKENS) for n, c in zip(lengths, contexts, strict=True)]
    free = torch.randperm(sum(needed) + 2, generator=torch.Generator().manual_seed(seed)).tolist()
    pages = [[free.pop() for _ in range(n)] for n in needed]
    return Batch.pack(
        [[0] * n for n in lengths], context_lens=contexts, slots=list(range(len(lengths))), pages=pages, device=device
    )


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case, device, dtype):
    findings = check("rotary", "triton", case, dtype=dtype, device=device)
    assert findings and [f for f in findings if not f.holds] == []


MLA = RotaryAttributes(head_dim=24, rotary_dim=8, offset=16, theta=1e4, layout="interleaved_to_half")


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize(
    ("a", "of_keys", "key_heads", "entry", "v_channels"),
    [
        pytest.param(HALF, None, 2, (2, 16), 24, id="kv"),
        pytest.param(MLA, MLA.model_copy(update={"head_dim": 8, "offset": 0}), 1, (8,), 520, id="latent"),
        pytest.param(HALF, None, 2, (2, 16), 0, id="keys-alone"),
    ],
)
def test_cache_write(a, of_keys, key_heads, entry, v_channels, device, dtype):
    lengths, contexts = [1, 0, 64, 3, 1], [0, 0, 63, 64, 130]
    batch = pack(lengths, contexts, device)
    n, keys = sum(lengths), of_keys or a
    rows = (int(batch.page_table.max()) + 3) * PAGE_TOKENS
    q = torch.randn(n, 3 * a.head_dim, device=device).to(dtype)
    k = torch.randn(n, key_heads * keys.head_dim, device=device).to(dtype)
    v = torch.randn(n, v_channels, device=device).to(dtype) if v_channels else None
    q_out = torch.full_like(q, NAN)
    pools = [torch.full((rows, *shape), NAN, dtype=dtype, device=device) for shape in (entry, (v_channels,))]
    turn_and_remember(
        a, q, k, v, batch, device_frequencies(a, q.device), key_attributes=of_keys, q_out=q_out, k_pool=pools[0],
        v_pool=pools[1] if v_channels else None,
    )  # fmt: skip
    assert torch.equal(q_out, rotary(a, q, batch=batch))
    turned = rotary(keys, k, batch=batch)
    for pool, written in ((pools[0], turned), (pools[1], v)):
        want = torch.full_like(pool, NAN)
        for s, (first, end, context) in enumerate(batch.spans()):
            if written is not None:
                append_tokens(want, batch, s, context, written[first:end])
        torch.testing.assert_close(pool, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_far_positions(device, dtype):
    """Angles of a million radians: the tables come from the same float32 angles as the reference's."""
    batch = pack([3], [(1 << 20) - 2], device)
    x = torch.randn(3, 32).to(dtype)
    on_cpu = pack([3], [(1 << 20) - 2])
    exact = reference(HALF, x.double(), batch=on_cpu)
    bound = ALLOWED_RATIO * relative_l2(reference(HALF, x, batch=on_cpu), exact) + torch.finfo(dtype).eps / 2
    assert relative_l2(rotary(HALF, x.to(device), batch=batch), exact) <= bound


@triton.jit
def rows_of_tokens(out, positions, cu_seqlens, page_table, tokens, sequences, table_row, scale, BT: tl.constexpr):
    token = tl.arange(0, BT).to(tl.int64)
    row = pool_rows(token, token < tokens, positions, cu_seqlens, page_table, sequences, table_row, 64, 4)
    tl.store(out + token, row * scale, mask=token < tokens)


def rows(batch, scale=1):
    n = batch.positions.shape[0]
    out = torch.full((n,), -1, dtype=torch.int64)
    table = batch.page_table
    rows_of_tokens[(1,)](
        out, batch.positions, batch.cu_seqlens, table, n, batch.sequences, table.stride(0), scale, BT=256
    )  # fmt: skip
    return out


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 17]), st.sampled_from([0, 1, 63, 64, 65, 200])), max_size=9))
def test_tokens_find_their_pages(sequences):
    batch = pack([n for n, _ in sequences], [c for _, c in sequences], seed=len(sequences))
    want = [batch.token_slots(s, c, c + n) for s, (n, c) in enumerate(sequences)]
    assert torch.equal(rows(batch), torch.cat([torch.zeros(0, dtype=torch.int64), *want]))


def test_offsets_beyond_32_bits():
    page = 1 << 27
    batch = Batch.pack([[0, 0]], context_lens=[63], slots=[0], pages=[[page, page + 1]])
    assert rows(batch, scale=1024).tolist() == [(page * 64 + 63) * 1024, (page + 1) * 64 * 1024]


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_wider_rows_and_no_tokens(device, dtype):
    batch = pack([4, 1], [0, 60], device)
    wide = torch.full((5, 64), NAN, dtype=dtype, device=device)
    view = wide[:, 8:40]
    view.copy_(torch.randn(5, 32))
    want = rotary(HALF, view, batch=batch)
    assert torch.equal(rotary(HALF, view.contiguous(), batch=batch), want)
    out = torch.full_like(wide, NAN)
    turn(HALF, view, batch.positions, device_frequencies(HALF, view.device), out=out[:, 3:35])
    assert torch.equal(out[:, 3:35], want) and int(out.isnan().sum()) == 5 * 32
    assert rotary(HALF, want[:0], batch=pack([0], [3], device)).shape == (0, 32)


def test_refusals_come_before_the_launch():
    batch = pack([4], [0])
    x, frequency = torch.randn(4, 32), device_frequencies(HALF, torch.device("cpu"))
    with pytest.raises(ContractError, match="whole heads of 16 channels, not 40"):
        rotary(HALF, torch.randn(4, 40), batch=batch)
    with pytest.raises(ContractError, match="x in"):
        rotary(HALF, x.double(), batch=batch)
    with pytest.raises(ContractError, match=r"positions of shape \[5\]"):
        rotary(HALF, torch.randn(5, 32), batch=batch)
    with pytest.raises(ContractError, match="an output apart"):
        turn(HALF, x, batch.positions, frequency, out=x)
    pool = torch.zeros(64, 2, 16)
    for changes, message in (
        ({"k_pool": pool[:, :1]}, "contiguous entries of 32 channels for k"),
        ({"v": x}, "values and a pool"),
        ({"key_attributes": HALF.model_copy(update={"theta": 1e5})}, "keys that turn as queries do"),
    ):
        more = {"v": None, "v_pool": None, "k_pool": pool, "key_attributes": None} | changes
        with pytest.raises(ContractError, match=message):
            turn_and_remember(HALF, x, x, more.pop("v"), batch, frequency, q_out=torch.empty(4, 32), **more)
