"""Small configurations of each model family, for tests.

Three rules decide the numbers:

- Every switch of the family that changes what is computed is on, and each kind of layer occurs.
- Budgets bite on about 100 tokens: an index top-k of 16, pools of 4, a SwiGLU limit that clips, YaRN. A port that
  ignores one of these is seen on a short prompt.
- Sizes that mean different things differ where the family allows it, so that a confused axis does not fit.

To add a family: one function from a number of layers to a config, with `@family(...)` above it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.configuration_utils import ALLOWED_LAYER_TYPES

from .tokenizer import BOS, EOS, PAD, VOCABULARY

HIDDEN = 128
INTERMEDIATE = 192
EXPERT_INTERMEDIATE = 64

COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    pad_token_id=PAD,
    bos_token_id=BOS,
    eos_token_id=EOS,
)
GROUPED_ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=64)
PLAIN_ATTENTION = dict(num_attention_heads=4, num_key_value_heads=4)
LATENT_ATTENTION = dict(PLAIN_ATTENTION, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=48)
GATED_DELTA_NET = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=64,
    linear_conv_kernel_dim=4,
)
QWEN_EXPERTS = dict(
    num_experts=8, num_experts_per_tok=2, moe_intermediate_size=EXPERT_INTERMEDIATE, shared_expert_intermediate_size=96
)
QWEN_ROPE = dict(
    rope_type="default",
    rope_theta=10_000.0,
    partial_rotary_factor=0.5,
    mrope_section=[6, 5, 5],
    mrope_interleaved=True,
)


@dataclass(frozen=True)
class Family:
    """How to make a small model of one family."""

    model_class: str
    """Name of the transformers class that is built and saved."""
    layers: int
    """Number of layers unless the caller says otherwise: the fewest that hold every kind of layer."""
    config: Callable[[int], PreTrainedConfig]
    """Number of layers -> configuration."""
    bounded_decay: bool = False
    """Whether decay is bound * sigmoid(exp(A_log) * (x + dt_bias)), not -exp(A_log) * softplus(x + dt_bias)."""


FAMILIES: dict[str, Family] = {}

Config = Callable[[int], PreTrainedConfig]


def family(model_class: str, layers: int, bounded_decay: bool = False) -> Callable[[Config], Config]:
    """Enter the decorated function in FAMILIES under its own name."""

    def enter(config: Config) -> Config:
        name = config.__name__
        assert name not in FAMILIES, name
        FAMILIES[name] = Family(model_class, layers, config, bounded_decay)
        return config

    return enter


def three_then(last: str, layers: int) -> list[str]:
    """Layer types: three linear layers, then one of type `last`, and again; 4 layers at least."""
    assert layers >= 4, f"{layers} layers do not hold every kind of layer; 4 do"
    return [last if index % 4 == 3 else "linear_attention" for index in range(layers)]


def indexed(before: str) -> str:
    """Layer type of indexed attention in the installed transformers; `before` 5.23 families had their own word."""
    return "indexed_attention" if "indexed_attention" in ALLOWED_LAYER_TYPES else before


def dense_first(layers: int) -> list[str]:
    """MLP types: one dense layer, then experts."""
    return ["dense"] + ["sparse"] * (layers - 1)


@family("Glm5NextForConditionalGeneration", layers=4, bounded_decay=True)
def glm5_next(layers: int) -> PreTrainedConfig:
    """transformers has no text-only class for this family, so a vision tower of one layer comes along."""
    text: dict[str, Any] = dict(
        COMMON,
        **LATENT_ATTENTION | dict(qk_rope_head_dim=0),
        num_hidden_layers=layers,
        layer_types=three_then(indexed("deepseek_sparse_attention"), layers),
        mlp_layer_types=dense_first(layers),
        q_lora_rank=96,
        index_topk=16,
        index_kpool=4,
        # An index score is a weighted sum of relus: with few heads many scores are exactly 0, and ties decide.
        index_n_heads=16,
        index_head_dim=32,
        linear_num_heads=4,
        linear_head_dim=32,
        intermediate_size=INTERMEDIATE,
        moe_intermediate_size=EXPERT_INTERMEDIATE,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        swiglu_limit=1.5,
        hc_mult=4,
        hc_sinkhorn_iters=20,
    )
    vision = dict(
        depth=1,
        hidden_size=32,
        num_heads=2,
        intermediate_size=32,
        out_hidden_size=HIDDEN,
        image_size=28,
        projection_intermediate_size=32,
    )
    return transformers.Glm5NextConfig(
        text_config=text, vision_config=vision, image_token_id=VOCABULARY - 8, video_token_id=VOCABULARY - 9
    )


@family("Qwen4ExpForCausalLM", layers=4)
def qwen4_exp(layers: int) -> PreTrainedConfig:
    return transformers.Qwen4ExpTextConfig(
        **COMMON,
        **GROUPED_ATTENTION,
        **GATED_DELTA_NET,
        **QWEN_EXPERTS,
        num_hidden_layers=layers,
        layer_types=three_then(indexed("full_attention"), layers),
        rope_parameters=dict(QWEN_ROPE),
        output_gate_type="sigmoid",
        hc_count=4,
        hc_lowrank=32,
        ple_layer_ids=[1, 2],
        ple_embed_dim=HIDDEN,
        ple_conv_kernel_size=4,
        ngram_size=3,
        heads_per_ngram=2,
        # A prime, and 4 rows above a multiple of 16: another base or divisor gives another number of rows.
        ngram_vocab_size_base=521,
        make_ngram_vocab_size_divisible_by=8,
        split_ngram_parts=2,
        indexer_n_heads=8,
        indexer_kv_heads=1,
        indexer_head_dim=32,
        indexer_budget=16,
        indexer_compress_ratio=4,
    )


@family("KimiLinearForCausalLM", layers=4)
def kimi_linear(layers: int) -> PreTrainedConfig:
    return transformers.KimiLinearConfig(
        **COMMON,
        **LATENT_ATTENTION,
        q_lora_rank=None,
        num_hidden_layers=layers,
        layer_types=three_then("full_attention", layers),
        mlp_layer_types=dense_first(layers),
        linear_num_heads=4,
        linear_head_dim=32,
        linear_conv_kernel_dim=4,
        intermediate_size=INTERMEDIATE,
        moe_intermediate_size=EXPERT_INTERMEDIATE,
        num_experts=8,
        num_experts_per_token=2,
        num_shared_experts=1,
        num_expert_group=2,
        topk_group=1,
        routed_scaling_factor=2.446,
    )


@family("Qwen3NextForCausalLM", layers=4)
def qwen3_next(layers: int) -> PreTrainedConfig:
    return transformers.Qwen3NextConfig(
        **COMMON,
        **GROUPED_ATTENTION,
        **GATED_DELTA_NET,
        **QWEN_EXPERTS,
        num_hidden_layers=layers,
        layer_types=three_then("full_attention", layers),
        intermediate_size=INTERMEDIATE,
        norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=10_000.0, partial_rotary_factor=0.25),
    )


@family("Qwen3_5ForCausalLM", layers=4)
def qwen3_5(layers: int) -> PreTrainedConfig:
    return transformers.Qwen3_5TextConfig(
        **COMMON,
        **GROUPED_ATTENTION,
        **GATED_DELTA_NET,
        num_hidden_layers=layers,
        layer_types=three_then("full_attention", layers),
        intermediate_size=INTERMEDIATE,
        rope_parameters=dict(QWEN_ROPE),
    )


@family("DeepseekV32ForCausalLM", layers=3)
def deepseek_v32(layers: int) -> PreTrainedConfig:
    return transformers.DeepseekV32Config(
        **COMMON,
        **LATENT_ATTENTION,
        q_lora_rank=96,
        num_hidden_layers=layers,
        first_k_dense_replace=1,
        index_topk=16,
        index_n_heads=16,
        index_head_dim=64,
        intermediate_size=INTERMEDIATE,
        moe_intermediate_size=EXPERT_INTERMEDIATE,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=10_000.0,
            factor=4.0,
            original_max_position_embeddings=128,
            beta_fast=6.0,  # above 11, as by default, its bound is the first channel whatever the value
            beta_slow=1.0,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
    )


@family("OlmoHybridForCausalLM", layers=4)
def olmo_hybrid(layers: int) -> PreTrainedConfig:
    return transformers.OlmoHybridConfig(
        **COMMON,
        **PLAIN_ATTENTION,
        num_hidden_layers=layers,
        layer_types=three_then("full_attention", layers),
        intermediate_size=INTERMEDIATE,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=64,
        linear_allow_neg_eigval=True,
        rope_parameters=dict(rope_type="default", rope_theta=500_000.0),
    )
