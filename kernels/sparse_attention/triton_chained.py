"""The choice of an index and the read of what it chose as one call: the chosen never leave the L2 between the launches.

Apart, lists of positions are int64 and each part of a read looks up their pages. Here the choice writes the pool rows,
as 32-bit numbers that the read takes as they are, and the read starts while the last of them are written: its queries
are on their way by then.
"""

import torch
from torch import Tensor

from day0.kernels.common.triton_attention_launch import PLACES, read
from day0.kernels.common.triton_launch import require, require_tensor
from day0.kernels.common.triton_tuning import Config
from day0.kernels.index_select.schema import IndexSelectAttributes
from day0.kernels.index_select.triton_choose import Plan, choose
from day0.kernels.interface.batch import Batch

KERNEL = "sparse_attention/chained"


def place_columns(a: IndexSelectAttributes) -> int:
    """Columns of `places`: the width of a choice in whole tiles of a read."""
    return -(-a.width // PLACES) * PLACES


def choose_and_read(
    a: IndexSelectAttributes,
    steps: Plan,
    index_q: Tensor,  # [N, heads * dim] of the index
    index_keys: Tensor,  # [pool rows, dim], the new ones in it
    index_weights: Tensor | None,  # [N, heads]
    q: Tensor,  # [N, heads, key_dim]
    keys: Tensor,  # [pool rows, kv_heads, key_dim], the new ones in it
    values: Tensor | None,  # [pool rows, kv_heads, value_dim]; None: the keys are the values too
    out: Tensor,  # [N, heads, value_dim], written
    *,
    places: Tensor,  # [N, place_columns(a)] int32, written: pool rows of the chosen, ascending positions, then -1
    flag: Tensor,  # see `choose`
    index_scratch: Tensor,  # see `workspace`
    scratch: Tensor,  # see `read`, of `places` as indices
    scale: float,
    batch: Batch,
    q_rope: Tensor | None = None,  # [N, heads, rope_dim]
    rope_keys: Tensor | None = None,  # [pool rows, rope_dim]
    config: Config | None = None,
    splits: int | None = None,
) -> None:
    """What `read` gives of the positions that `choose` gives. Raises ContractError outside the contract of either."""
    columns = place_columns(a)
    require_tensor(KERNEL, "places", places, (q.shape[0], columns), (torch.int32,))
    require(places.stride(0) % PLACES == 0, KERNEL, f"places whose rows are a multiple of {PLACES} apart")
    choose(a, steps, index_q, index_keys, index_weights, places, flag, index_scratch, batch=batch, placed=True)
    read(
        q,
        keys,
        values,
        out,
        scale=scale,
        batch=batch,
        indices=places,
        q_rope=q_rope,
        rope_keys=rope_keys,
        scratch=scratch,
        config=config,
        splits=splits,
        placed=True,
        follows=True,
    )
