"""index_select and sparse_attention in place of the families' own indexers and attention, in float64."""

from functools import partial

import pytest
import torch

from day0.kernels.index_select.reference import index_scores, index_select
from day0.kernels.interface.batch import Batch
from day0.kernels.registry import get_kind, resolve
from day0.kernels.rotary.reference import rotary
from day0.reference.float64 import float64_arithmetic
from tests.kernels.paged import PagedSequences, randomise

SELECT = get_kind("index_select")
SPARSE = get_kind("sparse_attention")
ROTARY = get_kind("rotary")
TOKENS = 45
# Layers of at most 48-term products of numbers of size ~1, some ten roundings deep.
TOLERANCE = 1e-12


def causal():
    hidden = torch.full((TOKENS, TOKENS), torch.finfo(torch.float64).min, dtype=torch.float64)
    return hidden.triu(1)[None, None]


def chunked(operator, memory, ports):
    (out,) = memory.run(operator, [ports], [[17, 1, TOKENS - 18]])
    return out


def select_and_attend(choose, a, index_ports, ports, index_weights, weights, implementation="torch"):
    """(indices, attention output, memory) over three steps."""
    memory = PagedSequences(SELECT.components(choose, "select") + SPARSE.components(a, "attend"), [TOKENS])
    choosing = partial(index_select, choose, **index_weights, **memory.owned("select"))
    indices = chunked(choosing, memory, index_ports)
    attend = partial(resolve("sparse_attention", implementation), a, **weights, **memory.owned("attend"))
    return indices, chunked(attend, memory, (ports[0], indices, *ports[1:])), memory


def assert_clear_choice(choose, memory, index_ports):
    """The test's data leave a gap at every cut, so that there is one right choice."""
    keys = memory.state(0)["select.keys" if choose.pooling == "none" else "select.pooled_keys"]
    scores, visible = index_scores(choose, index_ports[0], keys, index_ports[2], torch.arange(TOKENS))
    ranked = scores.masked_fill(~visible, float("-inf")).sort(dim=1, descending=True).values
    kept = choose.budget // choose.pool
    assert (visible.sum(dim=1) > kept).any(), "some query must have more candidates than it may keep"
    cut = ranked[:, kept - 1] - ranked[:, kept]
    assert cut[visible.sum(dim=1) > kept].min() > 1e-9


def same_choice(got, want):
    for row, other in zip(got.tolist(), want.tolist(), strict=True):
        assert sorted(i for i in row if i >= 0) == sorted(i for i in other if i >= 0)


def glm5_next_layer(tail, implementation="eager"):
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextAttention

    config = Glm5NextTextConfig(
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=3,
        num_hidden_layers=1,
        layer_types=["indexed_attention"],
        mlp_layer_types=["dense"],
        q_lora_rank=16,
        kv_lora_rank=10,
        qk_nope_head_dim=6,
        qk_rope_head_dim=0,
        v_head_dim=5,
        index_topk=8,
        index_head_dim=6,
        index_n_heads=16,
        index_kpool=4,
        index_kpool_always_select_tail=tail,
    )
    config._attn_implementation = implementation
    return randomise(Glm5NextTextAttention(config, 0))


@pytest.mark.parametrize("implementation", ["torch", "torch_absorbed"])
@pytest.mark.parametrize("tail,their_attention", [(True, "eager"), (True, "sdpa"), (False, "sdpa")])
def test_glm5_next(tail, their_attention, implementation):
    layer = glm5_next_layer(tail, their_attention)
    x = torch.randn(1, TOKENS, 24, dtype=torch.float64)
    everyone = torch.ones(1, TOKENS, dtype=torch.bool)
    with float64_arithmetic(), torch.no_grad():
        want, *_ = layer(x, everyone)
        residual = layer.q_a_layernorm(layer.q_a_proj(x))
        want_indices = layer.indexer(x, residual, everyone, None)[0]
        indexer = layer.indexer
        index_ports = (
            indexer.wq_b(residual[0]),
            indexer.k_norm(indexer.wk(x[0])),
            indexer.weights_proj(x[0]),
            x[0] @ indexer.index_kpool_compress_gate.T,
        )
        ports = (layer.q_b_proj(residual[0]), layer.kv_a_layernorm(layer.kv_a_proj_with_mqa(x[0])))
    choose = SELECT.parse(
        dict(
            heads=16,
            dim=6,
            budget=8,
            scale=6**-0.5,
            score="relu_weighted",
            weight_scale=16**-0.5,
            pooling="softmax",
            pool=4,
            tail=tail,
        )
    )
    a = SPARSE.parse(
        dict(memory="latent", heads=3, rank=10, nope_dim=6, value_dim=5, scale=6**-0.5, width=choose.width)
    )
    indices, y, memory = select_and_attend(
        choose,
        a,
        index_ports,
        ports,
        {"pool_bias": indexer.index_kpool_compress_ape.detach()},
        {"kv_up": layer.kv_b_proj.weight.detach()},
        implementation,
    )
    assert indices.shape == want_indices.shape
    same_choice(indices, want_indices)
    assert_clear_choice(choose, memory, index_ports)
    assert (y @ layer.o_proj.weight.detach().T - want[0]).abs().max() < TOLERANCE


def rotated(a, x):
    batch = Batch.pack([[0] * TOKENS], context_lens=[0], slots=[0], pages=[[]])
    return rotary(a, x, batch=batch)


@pytest.mark.parametrize("implementation", ["torch", "torch_absorbed"])
def test_deepseek_v32(implementation):
    from transformers.models.deepseek_v32.configuration_deepseek_v32 import DeepseekV32Config
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Attention, DeepseekV32RotaryEmbedding

    yarn = dict(factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.8)
    config = DeepseekV32Config(
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=16,
        kv_lora_rank=10,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        index_topk=8,
        index_head_dim=6,
        index_n_heads=16,
        max_position_embeddings=64,
        rope_parameters=dict(rope_type="yarn", rope_theta=100.0, **yarn),
    )
    config._attn_implementation = "eager"
    layer, embedding = randomise(DeepseekV32Attention(config, 0)), DeepseekV32RotaryEmbedding(config).double()
    x = torch.randn(1, TOKENS, 24, dtype=torch.float64)
    with float64_arithmetic(), torch.no_grad():
        angles = embedding(x, torch.arange(TOKENS)[None])
        want, *_ = layer(x, angles, causal())
        indexer = layer.indexer
        residual = layer.q_a_layernorm(layer.q_a_proj(x[0]))
        want_indices = indexer(x, residual[None], angles, causal()[:, 0], None)[0]
        latent, rope_key = layer.kv_a_proj_with_mqa(x[0]).split((10, 4), dim=-1)
        latent = layer.kv_a_layernorm(latent)
        q = layer.q_b_proj(residual)
        index_q, index_k = indexer.wq_b(residual), indexer.k_norm(indexer.wk(x[0]))
        index_weights = indexer.weights_proj(x[0])
    rope = dict(rotary_dim=4, theta=100.0, scaling="yarn", **yarn)
    turn_q = ROTARY.parse(dict(head_dim=10, offset=6, layout="interleaved_to_half", **rope))
    turn_k = ROTARY.parse(dict(head_dim=4, layout="interleaved_to_half", **rope))
    turn_index = ROTARY.parse(dict(head_dim=6, **rope))
    index_ports = (rotated(turn_index, index_q), rotated(turn_index, index_k), index_weights)
    choose = SELECT.parse(dict(heads=16, dim=6, budget=8, scale=6**-0.5, score="relu_weighted", weight_scale=16**-0.5))
    a = SPARSE.parse(
        dict(memory="latent", heads=3, rank=10, nope_dim=6, rope_dim=4, value_dim=5, scale=layer.scaling, width=8)
    )
    ports = (rotated(turn_q, q), latent, rotated(turn_k, rope_key))
    weights = {"kv_up": layer.kv_b_proj.weight.detach()}
    indices, y, memory = select_and_attend(choose, a, index_ports, ports, {}, weights, implementation)
    assert_clear_choice(choose, memory, index_ports)
    # Theirs lists the future too where there are fewer than 8 tokens, and masks it later.
    past = want_indices.long().masked_fill(want_indices > torch.arange(TOKENS)[:, None], -1)
    same_choice(indices, past)
    assert (y @ layer.o_proj.weight.detach().T - want[0]).abs().max() < TOLERANCE


def test_qwen4_exp():
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextAttention, Qwen4ExpTextRotaryEmbedding

    config = Qwen4ExpTextConfig(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=1,
        layer_types=["indexed_attention"],
        head_dim=8,
        indexer_n_heads=9,
        indexer_kv_heads=1,
        indexer_head_dim=6,
        indexer_budget=8,
        indexer_compress_ratio=4,
        rms_norm_eps=1e-3,
        rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0]),
    )
    config._attn_implementation = "eager"
    layer, embedding = randomise(Qwen4ExpTextAttention(config, 0)), Qwen4ExpTextRotaryEmbedding(config).double()
    x = torch.randn(1, TOKENS, 24, dtype=torch.float64)
    with float64_arithmetic(), torch.no_grad():
        angles = embedding(x, torch.arange(TOKENS).expand(3, 1, TOKENS))
        want, _ = layer(x, angles, causal(), None)
        want_mask = layer.indexer(x, angles, causal(), None)[0, 0]
        q, gate = layer.q_proj(x[0]).view(TOKENS, 6, 16).chunk(2, dim=-1)
        q, k = layer.q_norm(q).flatten(1), layer.k_norm(layer.k_proj(x[0]).view(TOKENS, 2, 8)).flatten(1)
        v = layer.v_proj(x[0])
        index_q, index_k = layer.indexer.index_qk_proj(x[0]).split((54, 6), dim=-1)
        index_q = layer.indexer.q_layernorm(index_q.reshape(TOKENS, 9, 6)).flatten(1)
    turn = ROTARY.parse(dict(head_dim=8, rotary_dim=4, theta=100.0))
    turn_index = ROTARY.parse(dict(head_dim=6, rotary_dim=4, theta=100.0))
    choose = SELECT.parse(
        dict(
            heads=9,
            dim=6,
            budget=8,
            scale=6**-0.5,
            score="relu_sum",
            pooling="mean",
            pool=4,
            tail=True,
            pooled_norm_eps=1e-3,
            pooled_rotary_dim=4,
            pooled_rotary_theta=100.0,
        )
    )
    a = SPARSE.parse(dict(memory="kv", heads=6, kv_heads=2, head_dim=8, value_dim=8, scale=8**-0.5, width=choose.width))
    index_ports = (rotated(turn_index, index_q), index_k, None)
    norm = {"pooled_norm": layer.indexer.k_layernorm.weight.detach()}
    ports = (rotated(turn, q), rotated(turn, k), v)
    indices, y, memory = select_and_attend(choose, a, index_ports, ports, norm, {})
    assert_clear_choice(choose, memory, index_ports)
    for row, mask in zip(indices.tolist(), want_mask, strict=True):
        assert [i for i in row if i >= 0] == mask.nonzero().flatten().tolist()
    y = (y * torch.sigmoid(gate.flatten(1))) @ layer.o_proj.weight.detach().T
    assert (y - want[0]).abs().max() < TOLERANCE
