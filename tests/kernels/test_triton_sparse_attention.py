"""The sparse Triton attention against float64, here and on a GPU: holes, lists, quantised caches."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from day0.kernels.common.conformance import check, relative_l2
from day0.kernels.common.triton_attention_bench import quantise
from day0.kernels.common.triton_attention_launch import problem, read
from day0.kernels.common.triton_launch import INTERPRETED, ContractError
from day0.kernels.interface.batch import PAGE_TOKENS
from day0.kernels.registry import get_kind, resolve
from day0.kernels.sparse_attention.triton_cases import CASES
from tests.kernels import paged_reads

DEVICE = "cpu" if INTERPRETED else "cuda"
FEW = {"odd widths", "mla edges"}
# As in conformance.py: float32 sums of at most a few hundred terms.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3}
make_read = partial(paged_reads.make_read, device=DEVICE, width=9)


def run(x, splits=1, **more):
    arguments, options = x.arguments()
    p = problem(*arguments, batch=x.batch, indices=x.indices, rope_keys=x.rope_keys)
    out = torch.full((x.q.shape[0], x.q.shape[1], p.value_dim), float("nan"), dtype=x.q.dtype, device=DEVICE)
    scratch = torch.full((p.scratch(splits),), float("nan"), device=DEVICE)
    read(*arguments, out, scratch=scratch, splits=splits, **options, **more)
    return out


def assert_close(x, out):
    rows = int(x.batch.cu_seqlens[-1])
    assert relative_l2(out[:rows], x.exact()[:rows]) <= TOLERANCE[x.q.dtype]
    assert not out[rows:].any(), "rows past the last sequence are zero"


@pytest.mark.parametrize("case", [c for c in CASES if c.name in FEW], ids=lambda c: c.name)
def test_steps_keep_to_float64(case):
    short = replace(case, chunks=((5, 1, 2), (2, 0, 1)))
    found = check("sparse_attention", "triton", short, dtype=torch.float32, device=DEVICE)
    assert found and all(f.holds for f in found), [f for f in found if not f.holds]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_steps_keep_to_float64_on_a_gpu(case, dtype):
    found = check("sparse_attention", "triton", case, dtype=dtype, device="cuda")
    assert found and all(f.holds for f in found), [f for f in found if not f.holds]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_ragged_sequences_holes_and_padding(dtype, splits):
    x = make_read([1, 1, 0, 2], [0, 63, 5, 64], width=70, padding=2, dtype=dtype)
    x.indices[3] = -1
    assert_close(x, run(x, splits))
    assert not run(x, splits)[3].any(), "an empty list gives zeros"


def test_lists_in_32_bits_and_latents_with_rope_keys():
    x = make_read([2, 1], [70, 0], heads=3, kv_heads=1, dim=24, value_dim=None, rope_dim=8)
    out = run(x)
    assert_close(x, out)
    assert torch.equal(run(replace(x, indices=x.indices.int())), out)


@pytest.mark.parametrize("wrong", [3, -2, 2**32, 2**40 - 1])
def test_a_position_that_is_none_shows(wrong):
    """The query stands at position 2: nothing after it is read, and the row is NaN, not an answer without it."""
    x = make_read([1, 1], [2, 2], width=4)
    x.indices[:] = torch.tensor([0, -1, 2, -1])
    exact = x.exact()
    x.indices[0, 3] = wrong
    out = run(x, 2)
    assert out[0].isnan().all()
    assert relative_l2(out[1], exact[1]) <= 1e-6


def test_only_listed_entries_are_read():
    x = make_read([1], [70], width=3)
    x.indices[0] = torch.tensor([64, -1, 5])
    keep = [int(x.batch.page_table[0, p // PAGE_TOKENS]) * PAGE_TOKENS + p % PAGE_TOKENS for p in (64, 5)]
    for pool in (x.keys, x.values):
        kept = pool[keep].clone()
        pool.fill_(float("nan"))
        pool[keep] = kept
    assert_close(x, run(x))


def test_parts_past_the_end_of_a_list_write_nowhere():
    """Three parts of whole tiles are longer than the list and the room for its rows, which the results follow."""
    x = make_read([1], [300], width=256)
    x.indices[0] = torch.arange(256)
    assert_close(x, run(x, 3))


def test_all_equal_scores_average_the_values():
    x = make_read([1], [40], width=8)
    x.q.zero_()
    x.indices[0] = torch.arange(8)
    rows = int(x.batch.page_table[0, 0]) * PAGE_TOKENS + torch.arange(8)
    expected = x.values[rows].mean(0).repeat_interleave(2, 0)
    assert relative_l2(run(x)[0], expected) <= 1e-6


def test_repeated_runs_are_the_same_bits():
    x = make_read([2], [40])
    assert torch.equal(run(x, 2), run(x, 2))


def test_with_all_positions_listed_it_is_dense_attention():
    """Up to `width` positions the choice is all of them: dense and sparse are one function, also bit for bit."""
    x = make_read([1, 1], [7, 3], width=8)
    for n, length in enumerate((8, 4)):
        x.indices[n] = torch.where(torch.arange(8) < length, torch.arange(8), -1)
    assert torch.equal(run(x), run(replace(x, indices=None)))


def test_the_kinds_agree_at_the_switch():
    shape = dict(memory="latent", heads=2, rank=16, nope_dim=8, rope_dim=8, value_dim=8, scale=0.3)
    sparse, dense = get_kind("sparse_attention").parse(shape | {"width": 3}), get_kind("attention").parse(shape)
    x = make_read([3], [0], width=3)
    x.indices[:] = torch.tensor([[0, -1, -1], [1, -1, 0], [2, 1, 0]])
    ports = [torch.randn(3, n, device=DEVICE) for n in (2 * 16, 16, 8)]
    kv_up = torch.randn(2 * 16, 16, device=DEVICE) / 4
    results = []
    for kind, a, lists in (("sparse_attention", sparse, [x.indices]), ("attention", dense, [])):
        pools = {"latents": torch.full((192, 16), float("nan"), device=DEVICE)}
        pools["rope_keys"] = torch.full((192, 8), float("nan"), device=DEVICE)
        function = resolve(kind, "triton")
        results.append(function(a, ports[0], *lists, *ports[1:], kv_up=kv_up, batch=x.batch, **pools))
    assert relative_l2(results[0], results[1]) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("dim", [128, 256])
def test_quantised_entries_are_dequantised_tile_by_tile(dtype, dim):
    """One tile scales scores and weights, more scale the entries; both against the dequantised cache in float64."""
    x = make_read([1], [20], heads=2, kv_heads=1, dim=dim, value_dim=dim)
    clean = {"keys": x.keys.nan_to_num(0.1), "values": x.values.nan_to_num(0.1)}
    kept = {name: quantise(pool, dtype) for name, pool in clean.items()}
    read_back = {name: (v.float().unflatten(-1, (-1, 128)) * s[..., None]).flatten(-2) for name, (v, s) in kept.items()}
    scales = {"key_scales": kept["keys"][1], "value_scales": kept["values"][1]}
    out = run(replace(x, **{name: v for name, (v, _) in kept.items()}), **scales)
    assert_close(replace(x, **read_back), out)


def test_scales_of_any_size():
    """A row that is all zeros has the scale 0; one row's values are far above, and one's far below, all others."""
    x = make_read([1], [20], heads=2, kv_heads=1, dim=128, value_dim=128)
    row = x.batch.page_table[0, 0] * 64
    values = x.values.nan_to_num(0.1)
    for position, times in ((0, 0.0), (1, 1e12), (2, 1e-12)):
        values[row + position] *= times
    kept = {"keys": quantise(x.keys.nan_to_num(0.1), torch.int8), "values": quantise(values, torch.int8)}
    for numbers, scales in kept.values():
        numbers[scales[..., 0] == 0.0] = 1
    read_back = {name: (v.float().unflatten(-1, (-1, 128)) * s[..., None]).flatten(-2) for name, (v, s) in kept.items()}
    scales = {"key_scales": kept["keys"][1], "value_scales": kept["values"][1]}
    out = run(replace(x, **{name: v for name, (v, _) in kept.items()}), **scales)
    assert_close(replace(x, **read_back), out)


def test_quantised_latents():
    x = make_read([1], [20], heads=2, kv_heads=1, dim=256, value_dim=None, rope_dim=16)
    values, scales = quantise(x.keys.nan_to_num(0.1), torch.int8)
    out = run(replace(x, keys=values), key_scales=scales)
    assert_close(replace(x, keys=(values.float().unflatten(-1, (-1, 128)) * scales[..., None]).flatten(-2)), out)


@pytest.mark.parametrize("width", [1, 33, 64, 130])
@pytest.mark.parametrize("splits", [1, 3])
def test_rows_of_the_next_tile_are_asked_for_ahead(width, splits):
    x = make_read([1, 2], [150, 20], heads=2, kv_heads=1, value_dim=None, rope_dim=8, width=width, dtype=torch.float16)
    config = {"BN": 32, "warps": 1, "stages": 2, "per_sm": 1, "apart": 1, "fetch": 1}
    assert_close(x, run(x, splits, config=config))


@pytest.mark.parametrize("splits", [1, 3])
def test_lists_of_no_positions_give_zeros(splits):
    x = make_read([1, 1], [2, 70])
    empty = replace(x, indices=x.indices[:, :0].contiguous())
    assert not run(empty, splits).any()


def test_what_does_not_fit_is_refused_before_it_runs():
    x = make_read([1], [2])
    with pytest.raises(ContractError, match="indices of shape"):
        run(replace(x, indices=x.indices[0]))
    with pytest.raises(ContractError, match="indices in"):
        run(replace(x, indices=x.indices.float()))
    with pytest.raises(ContractError, match="keys in"):
        run(x, key_scales=torch.ones(x.keys.shape[0], 2, 1, device=DEVICE))
    a = get_kind("sparse_attention").parse(
        dict(memory="kv", heads=4, kv_heads=2, head_dim=16, value_dim=16, scale=1.0, width=8)
    )
    with pytest.raises(ContractError, match="indices of 8 columns"):
        resolve("sparse_attention", "triton")(a, x.q, x.indices, x.q, batch=x.batch)
