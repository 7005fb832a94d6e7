"""How softmax attention writes, reads and attends to what it remembers, in plain torch."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from day0.kernels.common.attention_memory import AttentionMemoryAttributes, entry_shapes
from day0.kernels.common.numerics import upcast
from day0.kernels.common.paged import append_tokens, sequence_tokens
from day0.kernels.interface.batch import Batch


def causal_mask(context: int, tokens: int, device: torch.device) -> Tensor:
    """[tokens, context + tokens] bool: query i, at position context + i, sees the positions up to its own."""
    ones = torch.ones(tokens, context + tokens, dtype=torch.bool, device=device)
    return ones.tril(diagonal=context)


def remember(
    a: AttentionMemoryAttributes,
    batch: Batch,
    k_or_latent: Tensor,  # [N, kv_heads * head_dim], or [N, rank]
    v_or_rope_key: Tensor | None,  # [N, kv_heads * value_dim], or [N, rope_dim]; None when rope_dim is 0
    pools: Mapping[str, Tensor],  # by component name
) -> Iterator[tuple[slice, int, dict[str, Tensor]]]:
    """Per sequence: writes its new tokens' entries, then gives (its rows, its context length, all its entries).

    Entries are [context + new tokens, *shape] by component name. Raises ValueError when the ports are not the memory's.
    """
    shapes = entry_shapes(a)
    ports = [k_or_latent] if v_or_rope_key is None else [k_or_latent, v_or_rope_key]
    if len(ports) != len(shapes) or set(pools) != set(shapes):
        raise ValueError(f"memory {a.memory} takes {', '.join(shapes)}: got {len(ports)} ports, pools {sorted(pools)}")
    for sequence, (first, end, context) in enumerate(batch.spans()):
        entries = {}
        for name, port in zip(shapes, ports, strict=True):
            append_tokens(pools[name], batch, sequence, context, port[first:end])
            entries[name] = sequence_tokens(pools[name], batch, sequence, context + end - first)
        yield slice(first, end), context, entries


def expand(a: AttentionMemoryAttributes, entries: Mapping[str, Tensor], kv_up: Tensor | None) -> tuple[Tensor, Tensor]:
    """Every query head's keys [T, heads, query_dim] and values [T, heads, value_dim]."""
    if kv_up is None:
        shared = a.heads // a.kv_heads
        return entries["keys"].repeat_interleave(shared, dim=1), entries["values"].repeat_interleave(shared, dim=1)
    made = torch.nn.functional.linear(entries["latents"], kv_up).reshape(-1, a.heads, a.nope_dim + a.value_dim)
    keys, values = made.tensor_split((a.nope_dim,), dim=-1)
    if a.rope_dim:
        keys = torch.cat((keys, entries["rope_keys"][:, None].expand(-1, a.heads, -1)), dim=-1)
    return keys, values


def probabilities(scores: Tensor, visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Softmax of scores [n, heads, T] over the visible [n, T], then the cast to the activation dtype.

    A query that sees nothing gets zeros.
    """
    hidden = ~visible[:, None]
    # Every score of a blind row is -inf and its softmax NaN; the second fill makes that 0.
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).masked_fill(hidden, 0.0).to(dtype)


def attend(
    q: Tensor,  # [n, heads, query_dim]
    keys: Tensor,  # [T, heads, query_dim]
    values: Tensor,  # [T, heads, value_dim]
    visible: Tensor,  # [n, T] bool
    scale: float,
) -> Tensor:  # [n, heads, value_dim]
    """softmax(scale * q k^T) v per head: scores and softmax in float32, the product with v in the activation dtype."""
    scores = torch.einsum("nhd,thd->nht", upcast(q), upcast(keys)) * scale
    return torch.einsum("nht,thd->nhd", probabilities(scores, visible, q.dtype), values)


def attend_absorbed(
    a: AttentionMemoryAttributes,
    q: Tensor,  # [n, heads, nope_dim + rope_dim]
    entries: Mapping[str, Tensor],
    kv_up: Tensor,
    visible: Tensor,  # [n, T] bool
) -> Tensor:  # [n, heads, value_dim]
    """The same as `expand` and `attend` over latents, with kv_up moved to the queries and the result.

    q.(W_k c) = (W_k^T q).c and sum_t p_t W_v c_t = W_v sum_t p_t c_t (arXiv 2405.04434, section 2.1.2), so that no key
    or value is ever made: less work when few queries read a long context.
    """
    make_keys, make_values = kv_up.reshape(a.heads, -1, a.rank).tensor_split((a.nope_dim,), dim=1)
    plain, rotary = q.tensor_split((a.nope_dim,), dim=-1)
    latents = entries["latents"]
    absorbed = torch.einsum("nhd,hdr->nhr", plain, make_keys)
    scores = torch.einsum("nhr,tr->nht", upcast(absorbed), upcast(latents))
    if a.rope_dim:
        scores = scores + torch.einsum("nhd,td->nht", upcast(rotary), upcast(entries["rope_keys"]))
    read = torch.einsum("nht,tr->nhr", probabilities(scores * a.scale, visible, q.dtype), latents)
    return torch.einsum("nhr,hdr->nhd", read, make_values)
