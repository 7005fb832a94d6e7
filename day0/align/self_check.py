"""The reference against itself, before anything is compared with it: it can be wrong."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from day0.align.exactness import BOUND
from day0.align.precision import JUMP, row_errors, ulp_floor
from day0.align.ties import LIMIT
from day0.align.training_side import Reference
from day0.artifacts.alignment import SelfCheck
from day0.reference.match import error

CACHED: Final = "cached decode"
CHUNKED: Final = "chunked prefill"
_DECODED = 12
_CHUNKS = (17, 1, 13)  # the last one repeats


def check_reference(
    reference: Reference,
    ids: Sequence[int],
    *,
    truth: Tensor | None = None,
    tied: Callable[[], Tensor] | None = None,
    leak: float = 0.0,
    declared: Mapping[str, str] | None = None,
) -> list[SelfCheck]:
    """Cached one-token decode and chunked prefill against one forward over the same tokens, in the reference's dtype.

    In float64 the bound is that of exactness, or the family's declared `leak` where larger. In other dtypes `truth`
    (float64 logits [T, vocab]) measures the reference's rounding error e: two ways of computing that are each within
    2 e and e of the truth are within 3 e of each other. A row that moves further than rounding moves it is left out
    there when a choice on a tie reaches it: `tied` tells those rows, [T] bool, and is asked only where a row moves.
    `declared`: check name -> the recipe's reason why it fails.
    """
    full = reference.logits(list(ids))
    runs: dict[Literal["cached decode", "chunked prefill"], Callable[[], Tensor]] = {
        CACHED: lambda: _in_steps(reference, ids, [len(ids) - _DECODED, 1]),
        CHUNKED: lambda: _in_steps(reference, ids, list(_CHUNKS)),
    }
    bound, jumping = max(BOUND, leak), torch.zeros(len(full), dtype=torch.bool)
    if truth is not None:
        bound, jumping = _rounding(full, truth, reference.dtype)
    checks = []
    for name, run in runs.items():
        detail = ""
        try:
            logits = run()
        except Exception as failure:  # the reference's own code may raise anything; that it does is the finding
            wrong, detail = float("inf"), f"raises {type(failure).__name__}: {failure}".splitlines()[0]
        else:
            left_out = torch.zeros_like(jumping)
            if truth is not None and tied is not None:
                moved = jumping | (row_errors(logits, full) > JUMP * bound)
                left_out = moved & tied() if moved.any() else moved
                detail = f"{int(left_out.sum())} rows moved by a tie" if left_out.any() else ""
            wrong = error(logits[~left_out], full[~left_out])
        checks.append(
            SelfCheck(
                name=name,
                dtype=str(reference.dtype).removeprefix("torch."),
                holds=wrong <= bound,
                error=wrong,
                bound=bound,
                detail=detail,
                declared=(declared or {}).get(name, ""),
            )
        )
    return checks


def _rounding(full: Tensor, truth: Tensor, dtype: torch.dtype) -> tuple[float, Tensor]:
    """How far two ways of computing the logits may be apart, and the rows that rounding alone does not explain."""
    own, floor = row_errors(full, truth), ulp_floor(dtype, full.shape[-1])
    jumping = own > JUMP * max(float(own.median()), floor)
    return (LIMIT + 1) * max(error(full[~jumping], truth[~jumping]), floor), jumping


@torch.no_grad()
def _in_steps(reference: Reference, ids: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Logits [T, vocab] of the ids run with a cache in steps of these sizes, the last one repeating."""
    rows, cache, start, turn = [], None, 0, 0
    with reference.exact():
        while start < len(ids):
            size = sizes[min(turn, len(sizes) - 1)]
            step = torch.tensor([list(ids[start : start + size])])
            logits, cache = reference.forward(step, start, cache, use_cache=True)
            rows.append(logits.reshape(step.shape[1], -1))
            start, turn = start + size, turn + 1
    return torch.cat(rows)
