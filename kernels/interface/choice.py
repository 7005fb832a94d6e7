"""What a discrete choice is made by: the real numbers behind indices, so that two of them can be compared."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Choice:
    """In each row the `kept` largest of `scores` [N, candidates] are chosen. -inf: a candidate that the row may not
    choose; candidates that no row has need no column.
    """

    scores: Tensor
    kept: int
