"""What every test gets: day0 from the installed package, small repos of each family, no GPU tests without a GPU."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# `python -m pytest` puts the checkout on the path, and with it `kernels/` under the name of another package.
ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

from tests.builders import cache  # noqa: E402

# Without a driver Triton can only interpret its kernels, and it decides so when they are decorated.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def tiny_repo() -> Callable[..., Path]:
    """tiny_repo(family, seed=0, dtype="float32", layers=None, **text_config): folder of a small random repo.

    Shared by all tests: read it, do not write in it.
    """
    return cache.tiny_repo
