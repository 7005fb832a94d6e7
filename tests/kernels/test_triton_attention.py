"""The dense Triton attention: against float64, interpreted here and compiled on a GPU; its launcher's refusals."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.kernels.attention.triton_cases import CASES
from day0.kernels.common.conformance import check, relative_l2
from day0.kernels.common.triton_attention_bench import quantise
from day0.kernels.common.triton_attention_launch import problem, read, write
from day0.kernels.common.triton_launch import INTERPRETED, ContractError
from day0.kernels.interface.batch import PAGE_TOKENS, Batch
from tests.kernels import paged_reads

DEVICE = "cpu" if INTERPRETED else "cuda"
make_read = partial(paged_reads.make_read, device=DEVICE)
# New tokens, tokens in memory.
SEQUENCES = st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 31, 64]))
FEW = {"odd widths", "mla edges"}
# As in conformance.py: float32 sums of at most a few hundred terms.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def run(x, splits=1, **more):
    arguments, options = x.arguments()
    p = problem(*arguments, batch=x.batch, indices=x.indices, rope_keys=x.rope_keys)
    out = torch.full((x.q.shape[0], x.q.shape[1], p.value_dim), float("nan"), dtype=x.q.dtype, device=x.q.device)
    scratch = torch.full((p.scratch(splits),), float("nan"), device=x.q.device)
    read(*arguments, out, scratch=scratch, splits=splits, **options, **more)
    return out


def assert_close(x, out):
    rows = int(x.batch.cu_seqlens[-1])
    assert relative_l2(out[:rows], x.exact()[:rows]) <= TOLERANCE[x.q.dtype]
    assert not out[rows:].any(), "rows past the last sequence are zero"


@pytest.mark.parametrize("case", [c for c in CASES if c.name in FEW], ids=lambda c: c.name)
def test_steps_keep_to_float64(case):
    found = check(
        "attention", "triton", replace(case, chunks=((62, 1, 2), (2, 0, 1))), dtype=torch.float32, device=DEVICE
    )
    assert found and all(f.holds for f in found), [f for f in found if not f.holds]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_steps_keep_to_float64_on_a_gpu(case, dtype):
    found = check("attention", "triton", case, dtype=dtype, device="cuda")
    assert found and all(f.holds for f in found), [f for f in found if not f.holds]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_ragged_sequences_and_padding(dtype, splits):
    """A fresh sequence, one at a page's end, one past it, an empty one; two rows of queries that belong to nobody."""
    x = make_read([1, 1, 0, 2], [0, 63, 5, 64], padding=2, dtype=dtype)
    assert_close(x, run(x, splits))


def test_latents_with_rope_keys_in_parts():
    x = make_read([1, 3], [70, 2], heads=3, kv_heads=1, dim=24, value_dim=None, rope_dim=8)
    assert_close(x, run(x, 1))
    assert_close(x, run(x, 2))
    assert_close(x, run(x, 2, config={"BN": 32, "warps": 1, "stages": 1, "per_sm": 1, "apart": 1, "fetch": 0}))


@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(
    ("splits", "more"),
    [(1, {}), (3, {"heads": 3, "kv_heads": 1, "rope_dim": 16}), (2, {"kv_heads": 1, "value_dim": None})],
    ids=["two key heads", "rope keys, in parts", "values that are the keys"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_quantised_entries_are_read_two_channels_at_a_time(kept, splits, more, dtype):
    x = make_read([1, 2], [70, 3], **({"dim": 128, "value_dim": 128, "padding": 1, "dtype": dtype} | more))
    # Where nobody wrote, the scale is NaN.
    pools = {name: pool for name, pool in (("keys", x.keys), ("values", x.values)) if pool is not None}
    stored = {name: quantise(pool.float().nan_to_num(0.1), kept) for name, pool in pools.items()}
    dequantised = {}
    for name, (values, scales) in stored.items():
        dequantised[name] = (values.float() * scales).masked_fill(pools[name].isnan(), float("nan"))
        scales[pools[name].isnan().any(-1)] = float("nan")
    options = {"key_scales": stored["keys"][1]}
    if "values" in stored:
        options["value_scales"] = stored["values"][1]
    out = run(replace(x, **{name: values for name, (values, _) in stored.items()}), splits, **options)
    assert_close(replace(x, **dequantised), out)


def test_quantised_entries_begin_at_even_bytes():
    x = make_read([1], [5], heads=2, kv_heads=1, dim=128, value_dim=None)
    values, scales = quantise(x.keys.nan_to_num(0.1), torch.int8)
    wide = torch.zeros(values.shape[0], 1, 129, dtype=torch.int8, device=DEVICE)
    for odd in (wide[..., :128], wide.view(-1)[1 : 1 + values.numel()].view(values.shape)):
        with pytest.raises(ContractError, match="even bytes"):
            run(replace(x, keys=odd), key_scales=scales)


def test_rows_too_far_apart_for_offsets_are_refused():
    x = make_read([1], [5])
    far = torch.empty(x.keys.shape[0], 2**25, device="meta").as_strided(x.keys.shape, (2**25, *x.keys.stride()[1:]))
    with pytest.raises(ContractError, match="keys whose rows"):
        run(replace(x, keys=far))


def test_more_parts_than_tiles():
    """Parts without any position are never read in merging: scratch is full of NaN."""
    x = make_read([1], [2])
    assert_close(x, run(x, 4))


def test_repeated_runs_are_the_same_bits():
    x = make_read([1, 2], [40, 0])
    assert torch.equal(run(x, 2), run(x, 2))


def test_nan_in_a_cache_stays_with_its_reader():
    x = make_read([1, 1], [3, 3])
    x.keys[int(x.batch.page_table[1, 0]) * PAGE_TOKENS + 1] = float("nan")
    out = run(x)
    assert not out[0].isnan().any() and out[1].isnan().all()


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 31, 64])), min_size=1, max_size=3), st.integers(1, 2)
)
def test_any_packing(sequences, splits):
    lengths, contexts = zip(*sequences, strict=True)
    if sum(lengths):
        x = make_read(list(lengths), list(contexts), heads=2, kv_heads=1)
        assert_close(x, run(x, splits))


def test_entries_go_to_their_pages():
    x = make_read([2, 0, 1], [63, 3, 0])
    ports = torch.randn(3, 5, device=DEVICE), torch.randn(3, 2, device=DEVICE)
    pools = tuple(torch.full((x.keys.shape[0], port.shape[1]), float("nan"), device=DEVICE) for port in ports)
    write(ports, pools, batch=x.batch)
    table = x.batch.page_table
    rows = [int(table[0, 0]) * 64 + 63, int(table[0, 1]) * 64, int(table[2, 0]) * 64]
    for port, pool in zip(ports, pools, strict=True):
        assert torch.equal(pool[rows], port) and int((~pool.isnan()).sum()) == port.numel()


def test_rows_beyond_31_bits_of_elements():
    """The last page of a pool of 2^31 elements and a page more; what is not touched takes no memory on the host."""
    page, dim = 2**31 // (PAGE_TOKENS * 64), 64
    batch = Batch.pack([[0]], context_lens=[2], slots=[0], pages=[[page]], device=DEVICE)
    pool = torch.empty((page + 1) * PAGE_TOKENS, 1, dim, dtype=torch.float16, device=DEVICE)
    port = torch.randn(1, dim, device=DEVICE).half()
    write((port,), (pool.flatten(1),), batch=batch)
    assert torch.equal(pool[page * PAGE_TOKENS + 2], port)
    pool[page * PAGE_TOKENS : page * PAGE_TOKENS + 3] = torch.randn(3, 1, dim, device=DEVICE).half()
    x = replace(make_read([1], [2], heads=1, kv_heads=1, dim=dim, dtype=torch.float16), batch=batch)
    x = replace(x, keys=pool, values=pool)
    assert_close(x, run(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (1, 3, 16)}, "as many query heads"),
        ({"q": (1, 4, 8)}, "keys of shape"),
        ({"values": (3, 2, 16)}, "values of shape"),
        ({"rope_keys": (192, 4)}, "together"),
        ({"keys": (192, 2, 16, 1)}, "keys of shape"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_runs(change, message):
    x = replace(make_read([1], [2]), **{name: torch.zeros(shape, device=DEVICE) for name, shape in change.items()})
    with pytest.raises(ContractError, match=message):
        run(x)


def test_other_dtypes_are_refused():
    x = make_read([1], [2])
    for change in ({"q": x.q.double()}, {"keys": x.keys.half()}):
        with pytest.raises(ContractError, match=f"{next(iter(change))} in"):
            run(replace(x, **change))


def test_parts_need_scratch():
    x = make_read([1], [2])
    arguments, options = x.arguments()
    with pytest.raises(ContractError, match="scratch for 2 splits"):
        read(*arguments, torch.zeros(1, 4, 16, device=DEVICE), splits=2, **options)
