"""rotary: against the rotation written out per channel pair, and against the families' own rotary code."""

import cmath
import math
from types import SimpleNamespace

import pytest
import torch

from day0.kernels.interface.batch import Batch
from day0.kernels.interface.kind import Work
from day0.kernels.registry import get_kind
from day0.kernels.rotary.contract import TORCH
from day0.kernels.rotary.reference import attention_factor, frequencies, rotary
from day0.reference.float64 import float64_arithmetic

KIND = get_kind("rotary")
YARN = dict(scaling="yarn", factor=4.0, original_max_position_embeddings=32)


def batch_at(context_lens, lengths):
    return Batch.pack(
        [[0] * n for n in lengths],
        context_lens=context_lens,
        slots=list(range(len(lengths))),
        pages=[[] for _ in lengths],
    )


def plain(a, x, positions):
    """One complex number per channel pair: (x1 + i x2) e^{i angle}."""
    out = x.clone()
    speeds = frequencies(a).tolist()
    for n, position in enumerate(positions):
        for head in range(0, x.shape[1], a.head_dim):
            for i in range(a.rotary_dim // 2):
                half = (i, i + a.rotary_dim // 2)
                pair = (2 * i, 2 * i + 1)
                read = half if a.layout == "half" else pair
                write = pair if a.layout == "interleaved" else half
                r1, r2, w1, w2 = (head + a.offset + j for j in (*read, *write))
                z = complex(float(x[n, r1]), float(x[n, r2])) * cmath.exp(1j * position * speeds[i])
                out[n, w1], out[n, w2] = z.real, z.imag
    return out


def test_frequencies_are_made_in_float32():
    a = KIND.parse(dict(head_dim=12, rotary_dim=10, theta=500.0))
    got = frequencies(a)
    assert got.dtype == torch.float32
    for i, value in enumerate(got.tolist()):
        # the exponent, the power and the reciprocal each round by 2^-24; ln(500) < 7 enlarges the exponent's
        assert abs(value / 500.0 ** (-2 * i / 10) - 1) < 9 * 2**-24


@pytest.mark.parametrize("layout", ["half", "interleaved", "interleaved_to_half"])
@pytest.mark.parametrize("head_dim,rotary_dim,offset", [(6, 6, 0), (10, 4, 0), (10, 4, 6), (9, 2, 3)])
def test_formula(layout, head_dim, rotary_dim, offset):
    a = KIND.parse(dict(head_dim=head_dim, rotary_dim=rotary_dim, offset=offset, layout=layout, theta=100.0))
    x = torch.randn(5, 3 * head_dim, dtype=torch.float64)
    got = rotary(a, x, batch=batch_at([0, 7], [3, 2]))
    # float64: an angle of at most 8 and a product each round by a few 1e-16
    assert (got - plain(a, x, [0, 1, 2, 7, 8])).abs().max() < 1e-13


def test_frequencies_stay_float32_where_float32_means_float64():
    for scaling in ({}, YARN):
        a = KIND.parse(dict(head_dim=12, rotary_dim=12, theta=500.0) | scaling)
        want = frequencies(a)
        with float64_arithmetic():
            got = frequencies(a)
        torch.set_default_dtype(torch.float64)
        try:
            by_default = frequencies(a)
        finally:
            torch.set_default_dtype(torch.float32)
        assert got.dtype == by_default.dtype == want.dtype == torch.float32
        assert torch.equal(got, want) and torch.equal(by_default, want)


def test_positions_are_the_batch_positions_whatever_the_packing():
    a = KIND.parse(dict(head_dim=8, rotary_dim=8, theta=1e4))
    x = torch.randn(9, 8, dtype=torch.float64)
    whole = rotary(a, x, batch=batch_at([0], [9]))
    parts = [rotary(a, x[i:j], batch=batch_at([i], [j - i])) for i, j in ((0, 1), (1, 6), (6, 9))]
    assert torch.equal(whole, torch.cat(parts))
    packed = rotary(a, torch.cat((x[4:], x[:3])), batch=batch_at([4, 0], [5, 3]))
    assert torch.equal(packed, torch.cat((whole[4:], whole[:3])))


def turned(a, x, dtype=torch.float64):
    return rotary(a, x.to(dtype), batch=batch_at([0], [x.shape[0]]))


def test_tables_are_rounded_to_the_activation_dtype_unless_float32_is_asked_for():
    x = torch.randn(64, 16)
    given = dict(head_dim=16, rotary_dim=16, theta=1e4)
    rounded, kept = (KIND.parse(given | dict(float32_tables=f)) for f in (False, True))
    coarse, fine = turned(rounded, x, torch.bfloat16), turned(kept, x, torch.bfloat16)
    assert coarse.dtype == fine.dtype == torch.bfloat16
    want = turned(kept, x.bfloat16())
    # Only the result is rounded to bfloat16 (2^-9 of it, half an ulp); float32 angles up to 64 are off by 64 * 6e-8.
    bound = want.abs() * 2**-8 + 1e-5 * x.abs().max()
    assert ((fine.double() - want).abs() <= bound).all()
    assert ((coarse.double() - want).abs() > bound).any()


@pytest.mark.parametrize(
    "given,want",
    [
        (dict(factor=8.0), 0.1 * math.log(8.0) + 1.0),
        (dict(factor=1.0), 1.0),
        (dict(factor=8.0, mscale=0.7), 0.1 * math.log(8.0) + 1.0),
        (dict(factor=8.0, mscale_all_dim=1.3), 0.1 * math.log(8.0) + 1.0),
        (dict(factor=8.0, mscale=0.7, mscale_all_dim=1.3), (0.07 * math.log(8) + 1) / (0.13 * math.log(8) + 1)),
        (dict(factor=8.0, attention_factor=0.5), 0.5),
    ],
)
def test_yarn_attention_factor_multiplies_the_result(given, want):
    a = KIND.parse(dict(head_dim=4, rotary_dim=4, theta=1e4) | YARN | given)
    assert attention_factor(a) == pytest.approx(want, rel=1e-15)
    x = torch.randn(3, 8, dtype=torch.float64)
    # A rotation keeps lengths, so what is left is the factor.
    assert torch.allclose(turned(a, x).norm(dim=1), want * x.norm(dim=1), rtol=1e-14)


def test_without_scaling_lengths_stay():
    a = KIND.parse(dict(head_dim=4, rotary_dim=4, theta=1e4))
    assert attention_factor(a) == 1.0


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {},
        dict(beta_fast=3.0, beta_slow=0.5),
        dict(factor=40.0, original_max_position_embeddings=4096),
        dict(beta_fast=1.0, beta_slow=1.0),  # both ends of the ramp in one place
        dict(original_max_position_embeddings=4),  # the ramp begins below channel 0
        dict(original_max_position_embeddings=2**20, beta_slow=0.01),  # and ends past the last
        dict(original_max_position_embeddings=256, beta_slow=0.4),  # from channel 0 past the last, for theta 10
        dict(mscale=0.7, mscale_all_dim=1.3),
        dict(attention_factor=0.9),
    ],
)
@pytest.mark.parametrize("theta", [10.0, 10000.0])
def test_yarn_equals_transformers(given, truncate, theta):
    from transformers import PretrainedConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    a = KIND.parse(dict(head_dim=16, rotary_dim=16, theta=theta, truncate=truncate) | YARN | given)
    yarn = {k: getattr(a, k) for k in YARN | given if k != "scaling"}
    config = PretrainedConfig(
        head_dim=16,
        hidden_size=16,
        num_attention_heads=1,
        max_position_embeddings=64,
        rope_parameters=dict(rope_type="yarn", rope_theta=theta, truncate=truncate) | yarn,
    )
    want, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    assert torch.equal(frequencies(a), want)
    assert attention_factor(a) == factor


def transformers_tables(module, config, positions, like):
    return module(config)(like, torch.tensor([positions]))


def rope_config(**given):
    return SimpleNamespace(
        max_position_embeddings=128,
        head_dim=given.pop("head_dim"),
        standardize_rope_params=lambda: None,
        rope_parameters=dict(rope_type="default", rope_theta=1e4) | given,
    )


def families():
    from transformers.models.deepseek_v32 import modeling_deepseek_v32 as v32
    from transformers.models.olmo_hybrid import modeling_olmo_hybrid as olmo
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen35
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen3
    from transformers.models.qwen4_exp import modeling_qwen4_exp as qwen4

    partial = dict(head_dim=16, partial_rotary_factor=0.5)
    mrope = partial | dict(mrope_section=[2, 1, 1])
    return {
        "qwen3_next": (qwen3.Qwen3NextRotaryEmbedding, qwen3.apply_rotary_pos_emb, partial, {}),
        "qwen3_5": (qwen35.Qwen3_5TextRotaryEmbedding, qwen35.apply_rotary_pos_emb, mrope, {}),
        "qwen4_exp": (qwen4.Qwen4ExpTextRotaryEmbedding, qwen4.apply_rotary_pos_emb, mrope, {}),
        "olmo_hybrid": (
            olmo.OlmoHybridRotaryEmbedding,
            olmo.apply_rotary_pos_emb,
            dict(head_dim=16),
            dict(float32_tables=True),
        ),
        "deepseek_v32": (
            v32.DeepseekV32RotaryEmbedding,
            v32.apply_rotary_pos_emb_interleave,
            dict(head_dim=16),
            dict(layout="interleaved_to_half"),
        ),
    }


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "qwen4_exp", "olmo_hybrid", "deepseek_v32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_family_bit_for_bit(family, dtype):
    module, apply, config, attributes = families()[family]
    positions = [5, 6, 7, 90]
    rotary_dim = int(16 * config.get("partial_rotary_factor", 1.0))
    q, k = torch.randn(4, 3 * 16).to(dtype), torch.randn(4, 16).to(dtype)
    cos, sin = transformers_tables(module, rope_config(**config), positions, q)

    def heads(x):
        return x.view(1, 4, -1, 16).transpose(1, 2)

    wanted = apply(heads(q), heads(k), cos, sin)
    a = KIND.parse(dict(head_dim=16, rotary_dim=rotary_dim, theta=1e4) | attributes)
    batch = batch_at([5, 90], [3, 1])
    for x, want in zip((q, k), wanted, strict=True):
        assert torch.equal(rotary(a, x, batch=batch), want.transpose(1, 2).reshape(x.shape))


def test_cost_by_hand():
    a = KIND.parse(dict(head_dim=10, rotary_dim=4, theta=1e4))
    cost = KIND.cost(a, Work("prefill", tokens=7, sequences=1, context=3, activation_bytes=4))
    # 2 pairs a token, 6 operations each; 10 channels of 4 bytes in and out
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (7 * 2 * 6, 7 * 40, 7 * 40)


@pytest.mark.parametrize(
    "given,message",
    [
        (dict(rotary_dim=3), "rotary_dim"),
        (dict(offset=6), "channels 6..9 are not all inside a head of 8"),
        (dict(layout="pairs"), "layout"),
        (dict(factor=2.0), "factor need scaling: yarn"),
        (dict(truncate=False), "truncate need scaling: yarn"),
        (dict(scaling="yarn", factor=2.0), "needs original_max_position_embeddings"),
        (dict(attention_factor=1.0, mscale=0.5) | YARN, "no effect"),
        (dict(attention_factor=1.0, mscale_all_dim=0.5) | YARN, "no effect"),
        (dict(theta=1.0), "theta"),
        (dict(rotary=4), "rotary"),
    ],
)
def test_parse_refusals(given, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(dict(head_dim=8, rotary_dim=4, theta=1e4) | given)


@pytest.mark.parametrize(
    "attribute,value,clause",
    [("rotary_dim", 5, "rotary_dim"), ("offset", -1, "offset"), ("scaling", "longrope", "scaling")],
)
def test_contract_refusals(attribute, value, clause):
    accepted = KIND.parse(dict(head_dim=8, rotary_dim=4, theta=1e4)).model_dump()
    assert TORCH.refusals({"attribute": accepted, "dtype": {"activation": "bfloat16"}}) == []
    (refusal,) = TORCH.refusals({"attribute": accepted | {attribute: value}})
    assert refusal.clause == clause
    (refusal,) = TORCH.refusals({"dtype": {"activation": "int8"}})
    assert refusal.clause == "dtype"


def test_every_alternative_parses_and_changes_the_result():
    x = torch.randn(40, 16).bfloat16()
    base = dict(head_dim=16, rotary_dim=16, theta=2e4) | YARN
    for name, values in KIND.attributes.alternatives().items():
        results = [turned(KIND.parse(base | {name: v}), x, torch.bfloat16) for v in values]
        for i, result in enumerate(results):
            assert not any(torch.equal(result, other) for other in results[:i]), (name, values[i])
