"""How many CPU threads torch works with."""

import contextlib
import os
from collections.abc import Iterator

import torch

# Below this many parameters an operator's work is shorter than handing it to another thread and waiting for it.
_SMALL_MODEL = 50_000_000


@contextlib.contextmanager
def threads_for(parameters: int) -> Iterator[None]:
    """One thread for a small model, torch's own choice for others; OMP_NUM_THREADS, where set, stands."""
    before = torch.get_num_threads()
    if parameters < _SMALL_MODEL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
