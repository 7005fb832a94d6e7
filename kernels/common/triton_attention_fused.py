"""Attention over a paged cache with the kernels of triton_attention.py: what the dense and the sparse kind share."""

from collections.abc import Mapping

import torch
from torch import Tensor

from day0.kernels.common.attention_memory import AttentionMemoryAttributes, entry_shapes
from day0.kernels.common.triton_attention_launch import KERNEL, problem, read, write
from day0.kernels.common.triton_launch import require
from day0.kernels.interface.batch import Batch


@torch.no_grad()
def attend_paged(
    a: AttentionMemoryAttributes,
    batch: Batch,
    q: Tensor,  # [N, heads * query_dim]
    k_or_latent: Tensor,  # [N, kv_heads * head_dim], or [N, rank]
    v_or_rope_key: Tensor | None,  # [N, kv_heads * value_dim], or [N, rope_dim]
    kv_up: Tensor | None,  # [heads * (nope_dim + value_dim), rank]
    pools: Mapping[str, Tensor],
    indices: Tensor | None = None,  # [N, width]; None: every position up to the query's own
) -> Tensor:  # [N, heads * value_dim]
    """Writes the new tokens' entries, then reads what each query attends to, as the kinds' references say.

    Latents are read as they are, with kv_up moved to the queries and the result (attention_memory.attend_absorbed).
    """
    shapes = entry_shapes(a)
    ports = (k_or_latent,) if v_or_rope_key is None else (k_or_latent, v_or_rope_key)
    fits = len(ports) == len(shapes) and set(pools) == set(shapes)
    require(fits, KERNEL, f"memory {a.memory} with {', '.join(shapes)}: got {len(ports)} ports, pools {sorted(pools)}")
    write(ports, tuple(pools[name].flatten(1) for name in shapes), batch=batch)
    y = q.new_empty(q.shape[0], a.heads, a.value_dim)
    queries = q.reshape(-1, a.heads, a.query_dim)
    if kv_up is None:
        require(a.memory == "kv", KERNEL, "the weight kv_up with memory latent")
        _read(queries, pools["keys"], pools["values"], y, a.scale, batch, indices)
    else:
        make_keys, make_values = kv_up.reshape(a.heads, -1, a.rank).tensor_split((a.nope_dim,), dim=1)
        plain, rotary = queries.tensor_split((a.nope_dim,), dim=-1)
        absorbed = torch.bmm(plain.transpose(0, 1), make_keys).transpose(0, 1)
        result = q.new_empty(q.shape[0], a.heads, a.rank)
        rope = (rotary, pools["rope_keys"]) if a.rope_dim else (None, None)
        _read(absorbed, pools["latents"][:, None], None, result, a.scale, batch, indices, *rope)
        torch.bmm(result.transpose(0, 1), make_values.mT, out=y.transpose(0, 1))
    return y.flatten(1)


def _read(
    q: Tensor,
    keys: Tensor,
    values: Tensor | None,
    out: Tensor,
    scale: float,
    batch: Batch,
    indices: Tensor | None,
    q_rope: Tensor | None = None,
    rope_keys: Tensor | None = None,
) -> None:
    """`read` with scratch of its own."""
    shape = problem(q, keys, values, batch=batch, indices=indices, rope_keys=rope_keys)
    config = shape.config()
    splits = shape.splits(config)
    read(
        q,
        keys,
        values,
        out,
        scale=scale,
        batch=batch,
        indices=indices,
        q_rope=q_rope,
        rope_keys=rope_keys,
        scratch=torch.empty(shape.scratch(splits), dtype=torch.float32, device=q.device),
        splits=splits,
        config=config,
    )
