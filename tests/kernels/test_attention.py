"""attention: against the formula per query and head, over chunkings and packings, and against the families' modules."""

import math
from functools import partial

import pytest
import torch

from day0.kernels.attention.contract import TORCH, TORCH_ABSORBED
from day0.kernels.interface.kind import Work
from day0.kernels.registry import get_kind, resolve
from day0.reference.float64 import float64_arithmetic
from tests.kernels.paged import PagedSequences, randomise

KIND = get_kind("attention")
FORMS = {
    "mha": dict(memory="kv", heads=3, kv_heads=3, head_dim=4, value_dim=4, scale=0.5),
    "gqa": dict(memory="kv", heads=6, kv_heads=2, head_dim=5, value_dim=3, scale=0.3),
    "mla": dict(memory="latent", heads=3, rank=7, nope_dim=4, rope_dim=2, value_dim=5, scale=0.4),
    "mla_without_rope": dict(memory="latent", heads=2, rank=6, nope_dim=5, rope_dim=0, value_dim=3, scale=0.4),
}
LATENT = ("mla", "mla_without_rope")
CASES = [(form, "torch") for form in FORMS] + [(form, "torch_absorbed") for form in LATENT]
# Softmax averages of values of size ~3 over at most 150 positions: sums of 150 terms, each rounded by 1.1e-16, and
# scores of at most ~10 whose error of ~1e-15 passes through exp.
TOLERANCE = 1e-13


def port_widths(a):
    if a.memory == "kv":
        return (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.value_dim)
    return (a.heads * (a.nope_dim + a.rope_dim), a.rank) + ((a.rope_dim,) if a.rope_dim else ())


def random_case(form, lengths, dtype=torch.float64):
    a = KIND.parse(FORMS[form])
    sequences = [tuple(torch.randn(n, w, dtype=dtype) for w in port_widths(a)) for n in lengths]
    weights = {n: torch.randn(w.shape, dtype=dtype) for n, w in KIND.weights(a).items()}
    return a, sequences, weights


def run(a, sequences, weights, chunks, implementation="torch", dtype=torch.float64):
    memory = PagedSequences(KIND.components(a), [s[0].shape[0] for s in sequences], dtype)
    operator = partial(resolve("attention", implementation), a, **weights, **memory.pools)
    return memory.run(operator, sequences, chunks), memory


def plain(a, ports, kv_up=None):
    """One query, head and position at a time, with Python's exp."""
    q, k, v = ports if len(ports) == 3 else (*ports, None)
    n = q.shape[0]
    width = q.shape[1] // a.heads
    out = torch.zeros(n, a.heads * a.value_dim, dtype=torch.float64)
    for head in range(a.heads):
        if a.memory == "kv":
            shared = head // (a.heads // a.kv_heads)
            keys = k[:, shared * a.head_dim : (shared + 1) * a.head_dim]
            values = v[:, shared * a.value_dim : (shared + 1) * a.value_dim]
        else:
            rows = kv_up[head * (a.nope_dim + a.value_dim) : (head + 1) * (a.nope_dim + a.value_dim)]
            made = torch.stack([rows @ c for c in k])
            keys, values = made[:, : a.nope_dim], made[:, a.nope_dim :]
            keys = keys if v is None else torch.cat((keys, v), dim=1)
        for t in range(n):
            query = q[t, head * width : (head + 1) * width]
            weight = [math.exp(a.scale * float(query @ keys[j])) for j in range(t + 1)]
            total = sum(weight)
            for j in range(t + 1):
                out[t, head * a.value_dim : (head + 1) * a.value_dim] += weight[j] / total * values[j]
    return out


@pytest.mark.parametrize("form,implementation", CASES)
def test_formula(form, implementation):
    a, sequences, weights = random_case(form, [11])
    (got,), _ = run(a, sequences, weights, [[11]], implementation)
    assert (got - plain(a, sequences[0], **weights)).abs().max() < TOLERANCE


@pytest.mark.parametrize("form,implementation", CASES)
@pytest.mark.parametrize("chunks", [[[1] * 70, [3, 63]], [[64, 6], [0, 0, 65, 1]], [[0, 7, 1, 62], [66]], [[70], [66]]])
def test_chunked_and_packed_equal_each_sequence_alone_in_one_pass(form, implementation, chunks):
    a, sequences, weights = random_case(form, [70, 66])
    got, memory = run(a, sequences, weights, chunks, implementation)
    for s, ports in enumerate(sequences):
        (want,), alone = run(a, [ports], weights, [[ports[0].shape[0]]])
        assert (got[s] - want).abs().max() < TOLERANCE
        for name, entries in memory.state(s).items():
            assert torch.equal(entries, alone.state(0)[name])
    for component in KIND.components(a):
        assert memory.written(component.name) == 70 + 66


@pytest.mark.parametrize("form", FORMS)
def test_memory_holds_what_came_in(form):
    a, sequences, weights = random_case(form, [9])
    _, memory = run(a, sequences, weights, [[4, 5]])
    state = memory.state(0)
    names = ("keys", "values") if a.memory == "kv" else ("latents", "rope_keys")
    for name, port in zip(names, sequences[0][1:], strict=False):
        assert torch.equal(state[name].flatten(1), port)
    assert set(state) == set(names[: len(sequences[0]) - 1])
    assert all(c.role == "token_paged" and c.rollback == "truncate" and not c.index for c in KIND.components(a))
    assert all(c.dtype == "activation" and c.tokens_per_entry == 1 for c in KIND.components(a))


@pytest.mark.parametrize("form,implementation", CASES)
def test_scores_and_softmax_are_float32_and_the_probabilities_are_rounded(form, implementation):
    a, sequences, weights = random_case(form, [40], torch.bfloat16)
    (got,), _ = run(a, sequences, weights, [[40]], implementation, torch.bfloat16)
    exact = [tuple(p.double() for p in ports) for ports in sequences]
    (want,), _ = run(a, exact, {n: w.double() for n, w in weights.items()}, [[40]])
    assert got.dtype == torch.bfloat16
    largest = sequences[0][1].abs().max().double() if a.memory == "latent" else sequences[0][2].abs().max().double()
    if a.memory == "kv":
        # Probabilities rounded by 2^-9 each (they sum to 1), then the result by 2^-9, both of the largest value.
        assert (got.double() - want).abs().max() < 2 * 2**-8 * largest
    else:
        # Also made keys and values (or absorbed queries and reads) are rounded by 2^-9: a score of size s is off by
        # about s 2^-9; relative error of the result in the 2-norm stays within a few times that.
        assert (got.double() - want).norm() < 8 * 2**-8 * want.norm()


def test_scores_are_not_rounded_to_the_activation_dtype():
    a = KIND.parse(dict(memory="kv", heads=1, kv_heads=1, head_dim=1, value_dim=1, scale=1.0))
    q = torch.tensor([[0.0], [17.0]]).bfloat16()
    k = torch.tensor([[15.0625], [15.125]]).bfloat16()
    v = torch.tensor([[0.0], [1.0]]).bfloat16()
    (got,), _ = run(a, [(q, k, v)], {}, [[2]], dtype=torch.bfloat16)
    # The scores 256.0625 and 257.125 would round to 256 and 258 in bfloat16: 0.88 instead of 0.74.
    assert float(got[1]) == pytest.approx(1 / (1 + math.exp(-1.0625)), abs=2**-8)


@pytest.mark.parametrize("form,ports", [("gqa", 2), ("mla", 2), ("mla_without_rope", 3)])
def test_ports_of_another_memory_are_refused(form, ports):
    a, sequences, weights = random_case(form, [2])
    given = (*sequences[0], sequences[0][0])[:ports]
    with pytest.raises(ValueError, match="takes"):
        run(a, [given], weights, [[2]])


def test_pools_of_another_memory_are_refused():
    a, sequences, weights = random_case("gqa", [2])
    memory = PagedSequences(KIND.components(a), [2])
    pools = {"keys": memory.pools["keys"], "latents": memory.pools["values"]}
    with pytest.raises(ValueError, match="takes keys, values"):
        memory.run(partial(resolve("attention", "torch"), a, **pools), sequences, [[2]])


def causal(n):
    return torch.full((n, n), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)[None, None]


def grouped_query_module(family):
    if family == "qwen3_next":
        from transformers.models.qwen3_next import modeling_qwen3_next as modeling
        from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

        config = Qwen3NextConfig(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=8)
        return modeling, modeling.Qwen3NextAttention, config
    from transformers.models.olmo_hybrid import modeling_olmo_hybrid as modeling
    from transformers.models.olmo_hybrid.configuration_olmo_hybrid import OlmoHybridConfig

    config = OlmoHybridConfig(hidden_size=48, num_attention_heads=6, num_key_value_heads=2)
    return modeling, modeling.OlmoHybridAttention, config


@pytest.mark.parametrize("family", ["qwen3_next", "olmo_hybrid"])
def test_equals_the_family_s_attention_between_its_rotary_and_its_output(family, monkeypatch):
    modeling, module, config = grouped_query_module(family)
    config._attn_implementation = "eager"
    layer = randomise(module(config, 0))
    seen = {}
    eager = modeling.eager_attention_forward

    def record(module, query, key, value, *args, **kwargs):
        out = eager(module, query, key, value, *args, **kwargs)
        seen.update(q=query, k=key, v=value, y=out[0])
        return out

    monkeypatch.setattr(modeling, "eager_attention_forward", record)
    angles = torch.randn(1, 13, 8, dtype=torch.float64)
    with float64_arithmetic(), torch.no_grad():
        layer(torch.randn(1, 13, config.hidden_size, dtype=torch.float64), (angles.cos(), angles.sin()), causal(13))
    a = KIND.parse(dict(memory="kv", heads=6, kv_heads=2, head_dim=8, value_dim=8, scale=8**-0.5))
    q, k, v = (seen[n][0].transpose(0, 1).flatten(1) for n in "qkv")
    (got,), _ = run(a, [(q, k, v)], {}, [[5, 8]])
    assert (got - seen["y"][0].flatten(1)).abs().max() < TOLERANCE


@pytest.mark.parametrize("implementation", ["torch", "torch_absorbed"])
def test_equals_kimi_linear_s_latent_attention(implementation):
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearAttention

    config = KimiLinearConfig(
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=None,
        kv_lora_rank=10,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
    )
    config._attn_implementation = "eager"
    layer = randomise(KimiLinearAttention(config, 0))
    x = torch.randn(1, 13, 24, dtype=torch.float64)
    with float64_arithmetic(), torch.no_grad():
        want, _ = layer(x, causal(13))
        latent, rope_key = layer.kv_a_proj_with_mqa(x[0]).split((10, 4), dim=-1)
        ports = (layer.q_proj(x[0]), layer.kv_a_layernorm(latent), rope_key)
    a = KIND.parse(dict(memory="latent", heads=3, rank=10, nope_dim=6, rope_dim=4, value_dim=5, scale=layer.scaling))
    (got,), _ = run(a, [ports], {"kv_up": layer.kv_b_proj.weight.detach()}, [[1, 12]], implementation)
    assert (got @ layer.o_proj.weight.detach().T - want[0]).abs().max() < TOLERANCE


def test_cost_of_keys_and_values_by_hand():
    a = KIND.parse(FORMS["gqa"])
    cost = KIND.cost(a, Work("prefill", tokens=6, sequences=2, context=10, activation_bytes=4))
    pairs = 2 * (11 + 12 + 13)
    assert cost.flops == pairs * 6 * 2 * (5 + 3)
    # q, k and v of 6 tokens, and 2 x 10 remembered tokens of 2 heads of 5 + 3 channels
    assert cost.bytes_read == 4 * (6 * (30 + 16) + 20 * 16)
    assert cost.bytes_written == 4 * 6 * (18 + 16)


def test_cost_of_latents_by_hand():
    a = KIND.parse(FORMS["mla"])
    decode = KIND.cost(a, Work("decode", tokens=2, sequences=2, context=100, activation_bytes=2, weight_bytes=1))
    owned = 3 * (4 + 5) * 7
    # absorbed: kv_up once per token, then scores over 7 + 2 channels and a read of 7
    assert decode.flops == 2 * 2 * owned + 2 * (2 * 101) * 3 * (7 + 2 + 7)
    assert decode.bytes_read == 2 * (2 * (18 + 9) + 200 * 9) + owned
    assert decode.bytes_written == 2 * 2 * (15 + 9)
    prefill = KIND.cost(a, Work("prefill", tokens=100, sequences=1, context=4))
    # expanded: kv_up for all 104 tokens, then scores over 6 channels and a read of 5
    assert prefill.flops == 2 * 104 * owned + 2 * (100 * 4 + 5050) * 3 * (4 + 2 + 5)


def test_cost_grows_linearly_with_context_and_sequences():
    for form in FORMS:
        a = KIND.parse(FORMS[form])
        one, two, three = (KIND.cost(a, Work("decode", tokens=1, sequences=1, context=c)) for c in (1000, 2000, 3000))
        assert two.flops - one.flops == three.flops - two.flops > 0
        assert two.bytes_read - one.bytes_read == three.bytes_read - two.bytes_read > 0
        many = KIND.cost(a, Work("decode", tokens=5, sequences=5, context=1000))
        assert many.flops == 5 * one.flops


@pytest.mark.parametrize(
    "form,given,message",
    [
        ("gqa", dict(kv_heads=4), "6 heads cannot share 4 kv_heads"),
        ("gqa", dict(kv_heads=0), "needs kv_heads"),
        ("gqa", dict(head_dim=0), "needs head_dim"),
        ("gqa", dict(rank=8), "rank mean nothing with memory: kv"),
        ("gqa", dict(rope_dim=2), "rope_dim mean nothing"),
        ("mla", dict(rank=0), "needs rank"),
        ("mla", dict(nope_dim=0), "needs nope_dim"),
        ("mla", dict(kv_heads=1, head_dim=4), "kv_heads, head_dim mean nothing with memory: latent"),
        ("mla", dict(memory="mla"), "memory"),
        ("mla", dict(scale=0.0), "scale"),
        ("mla", dict(window=4), "window"),
    ],
)
def test_parse_refusals(form, given, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(FORMS[form] | given)


def test_contract_refusals():
    latent = KIND.parse(FORMS["mla"]).model_dump()
    kv = KIND.parse(FORMS["gqa"]).model_dump()
    assert TORCH.refusals({"attribute": latent, "dtype": {"activation": "float16"}}) == []
    assert TORCH.refusals({"attribute": kv}) == TORCH_ABSORBED.refusals({"attribute": latent}) == []
    (refusal,) = TORCH_ABSORBED.refusals({"attribute": kv})
    assert str(refusal) == "attention/torch_absorbed.memory: kv not in {latent}"
    assert [r.clause for r in TORCH.refusals({"attribute": kv | dict(memory="window", scale=-1.0)})] == [
        "memory",
        "scale",
    ]
    assert [r.clause for r in TORCH.refusals({"dtype": {"activation": "int8"}})] == ["dtype"]
