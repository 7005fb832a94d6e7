"""Speculation on a recurrent state: run the drafted tokens without moving the state, then commit those accepted.

A recurrent state cannot be cut back, so `verify` leaves state and window as they are, and `commit` replays the accepted
tokens onto both. What is replayed are the step's own inputs: the ring costs no bytes and no copies beside the buffers
that the projections wrote anyway, which the caller keeps until it commits (under CUDA graphs they are static; two sets
let one step commit while the next is projected). Replaying is decoding without outputs, so that the state after
`commit` is that of decoding the accepted tokens. A rejected step costs nothing: commit with zeros.

Bytes a sequence and head: verify reads the state once, commit reads and writes it: 3/2 of a decode step for up to
MAX_TOKENS tokens, where a slot for every drafted token would write that many states.
"""

from torch import Tensor

from day0.kernels.common.triton_launch import require
from day0.kernels.common.triton_tuning import Config
from day0.kernels.interface.batch import Batch
from day0.kernels.recurrence.schema import RecurrenceAttributes
from day0.kernels.recurrence.triton_decode import Workspace, launch
from day0.kernels.recurrence.triton_pieces import OutputNorm, ShortConv

KERNEL = "recurrence.verify"
MAX_TOKENS = 16


def verify(
    a: RecurrenceAttributes,
    q: Tensor,  # [N, Hk * Dk]; with `conv`, q, k and v are its inputs
    k: Tensor,  # [N, Hk * Dk]
    v: Tensor,  # [N, Hv * Dv]
    decay: Tensor | None,  # [N, Hv] or [N, Hv * Dk]
    beta: Tensor | None,  # [N, Hv]
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    D: Tensor | None = None,
    batch: Batch,  # up to MAX_TOKENS tokens a sequence
    state: Tensor,  # [slots, Hv, Dk, Dv], read only
    out: Tensor,  # [N, Hv * Dv], written for every token
    conv: ShortConv | None = None,  # its window is read only
    norm: OutputNorm | None = None,
    config: Config | None = None,
) -> None:
    """Outputs of the drafted tokens; state and window stay. Raises ContractError as `triton_decode.launch` does."""
    require(q.shape[0] <= MAX_TOKENS * batch.sequences, KERNEL, f"at most {MAX_TOKENS} tokens a sequence")
    launch(
        a, q, k, v, decay, beta, A_log=A_log, dt_bias=dt_bias, D=D, batch=batch, state=state, out=out, conv=conv,
        norm=norm, commit=False, config=config,
    )  # fmt: skip


def commit(
    a: RecurrenceAttributes,
    q: Tensor,  # the tensors that `verify` took
    k: Tensor,
    v: Tensor,
    decay: Tensor | None,
    beta: Tensor | None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    batch: Batch,  # the one that `verify` took
    accepted: Tensor,  # [S]: how many tokens of each sequence stay, 0 .. its tokens
    state: Tensor,  # [slots, Hv, Dk, Dv], updated in place where any token was accepted
    conv: ShortConv | None = None,  # its window moves with the state
    scratch: Workspace | None = None,  # `triton_decode.workspace`, for a convolution that several programs share
    config: Config | None = None,
) -> None:
    """Moves state and window past the accepted tokens of the last `verify`. A fresh sequence (context 0) of which none
    is accepted stays fresh: its slot is not written. Raises ContractError as `triton_decode.launch` does."""
    launch(
        a, q, k, v, decay, beta, A_log=A_log, dt_bias=dt_bias, batch=batch, state=state, out=None, conv=conv,
        scratch=scratch, accepted=accepted, config=config,
    )  # fmt: skip
