"""Small repos on disk, built once per version of what builds them."""

import hashlib
import json
import os
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "day0-tests"
BUILD_SECONDS = 120


def tiny_repo(
    family: str, seed: int = 0, dtype: str = "float32", layers: int | None = None, **text_config: Any
) -> Path:
    """Folder of a small random repo of `family`, shared by all tests: read it, do not write in it.

    Arguments as for `tiny.write_repo`. Raises filelock.Timeout when another process has been building the same repo for
    longer than BUILD_SECONDS.
    """
    request = dict(family=family, seed=seed, dtype=dtype, layers=layers, **text_config)
    named = f"{family}-{digest(json.dumps(request, sort_keys=True).encode())[:12]}"
    repo = CACHE / builder_version() / named
    if repo.is_dir():
        return repo
    repo.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{repo}.lock", timeout=BUILD_SECONDS):
        if not repo.is_dir():
            # transformers is slow to import, and a repo that exists does not need it.
            from .tiny import write_repo

            with tempfile.TemporaryDirectory(dir=repo.parent) as scratch:
                write_repo(Path(scratch) / "repo", **request)
                os.rename(Path(scratch) / "repo", repo)
    return repo


@cache
def builder_version() -> str:
    """Changes with the sources of the builders and the versions that they build with."""
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    versions = f"transformers-{version('transformers')}-torch-{version('torch')}"
    return f"{versions}-{digest(*sources)[:12]}"


def digest(*parts: bytes) -> str:
    """SHA-256 of the parts, in hexadecimal."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
