"""A small causal language model whose residual stream is Attention Residuals (arXiv 2603.15031), block form.

A branch does not read the running sum: it reads a softmax mixture over the outputs of the blocks before it and the sum
of its own block so far. Written for tests of day0 as a repo with code of its own.
"""

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class AttentionResidualsConfig(PreTrainedConfig):
    model_type = "attention_residuals"

    def __init__(
        self,
        vocab_size=260,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        layers_per_block=2,
        rms_norm_eps=1e-5,
        residual_eps=1e-6,
        rope_theta=20000.0,
        max_position_embeddings=512,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.layers_per_block = layers_per_block
        self.rms_norm_eps = rms_norm_eps
        self.residual_eps = residual_eps
        self.rope_theta = rope_theta
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**kwargs)


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        inner = x.float()
        inner = inner * torch.rsqrt(inner.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * inner).to(x.dtype)


class ResidualAttention(nn.Module):
    """Mixes the sources [B, T, S, H] into one input [B, T, H]."""

    def __init__(self, config):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(config.hidden_size))
        self.key_weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.residual_eps

    def forward(self, sources):
        values = sources.float()
        keys = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + self.eps) * self.key_weight
        probabilities = torch.softmax(keys @ self.query.float(), dim=-1)
        return (probabilities.unsqueeze(-1) * values).sum(-2).to(sources.dtype)


def rotate(x, positions, theta):
    half = x.shape[-1] // 2
    # In the default dtype, as the released families make their tables: a float64 run keeps the rounded frequencies.
    frequencies = 1.0 / theta ** (torch.tensor([2.0 * i for i in range(half)]) / x.shape[-1])
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.theta = config.rope_theta
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)

    def forward(self, x, positions, past_key_values=None):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = rotate(q, positions, self.theta), rotate(k, positions, self.theta)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = q @ k.transpose(-1, -2) * self.dim**-0.5
        future = torch.arange(k.shape[2])[None, :] > positions[:, None]
        probabilities = torch.softmax(scores.masked_fill(future, float("-inf")).float(), dim=-1).to(q.dtype)
        return self.o_proj((probabilities @ v).transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        # The first branch of a block starts a source of its own; the embedding is the source before the first block.
        self.opens_block = layer_idx % config.layers_per_block == 0
        self.mixer_residual = ResidualAttention(config)
        self.input_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, layer_idx)
        self.ffn_residual = ResidualAttention(config)
        self.ffn_norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, sources, positions, past_key_values=None):
        y = self.attention(self.input_norm(self.mixer_residual(sources)), positions, past_key_values)
        if self.opens_block:
            sources = torch.cat((sources, y.unsqueeze(-2)), dim=-2)
        else:
            sources = torch.cat((sources[..., :-1, :], sources[..., -1:, :] + y.unsqueeze(-2)), dim=-2)
        y = self.feed_forward(self.ffn_norm(self.ffn_residual(sources)))
        return torch.cat((sources[..., :-1, :], sources[..., -1:, :] + y.unsqueeze(-2)), dim=-2)


class AttentionResidualsForCausalLM(PreTrainedModel):
    config_class = AttentionResidualsConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.final_residual = ResidualAttention(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, position_ids=None, past_key_values=None, use_cache=False, **kwargs):
        if use_cache and past_key_values is None:
            from transformers import DynamicCache

            past_key_values = DynamicCache()
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        positions = torch.arange(past, past + input_ids.shape[1]) if position_ids is None else position_ids[0]
        sources = self.embed_tokens(input_ids).unsqueeze(-2)
        for layer in self.layers:
            sources = layer(sources, positions, past_key_values)
        hidden = self.norm(self.final_residual(sources))
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), past_key_values=past_key_values)
