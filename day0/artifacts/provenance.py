"""Fills in what produced an artifact: versions, the kernel set, the hashes of what was read."""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import day0
from day0.artifacts.base import Provenance
from day0.artifacts.regular import regular
from day0.errors import Day0Error

_PACKAGES = ("torch", "triton", "transformers")


def produced_by(
    *,
    model_hash: str,
    inputs: Mapping[str, str] | None = None,
    reference_hash: str = "",
    device: str = "",
    driver: str = "",
    flags: dict[str, Any] | None = None,
) -> Provenance:
    """The provenance of an artifact made now; `inputs`: files that its stage read -> SHA-256 (hex)."""
    return Provenance(
        day0_version=day0.__version__,
        model_hash=model_hash,
        reference_hash=reference_hash,
        kernel_set=kernel_set_hash(),
        device=device,
        driver=driver,
        versions=package_versions(),
        flags=flags or {},
        inputs=dict(inputs or {}),
    )


def file_hash(path: Path) -> str:
    """SHA-256 (hex) of a file's content. Raises Day0Error when it cannot be read."""
    try:
        return hashlib.sha256(regular(path).read_bytes()).hexdigest()
    except OSError as error:
        raise Day0Error(f"cannot read {path}: {error.strerror}", hint="run the stage that writes it first") from error


@cache
def kernel_set_hash() -> str:
    """SHA-256 (hex) over the names and contents of all sources of `day0.kernels`."""
    root = Path(day0.__file__).parent / "kernels"
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".j2")):
        digest.update(f"{path.relative_to(root).as_posix()} {file_hash(path)}\n".encode())
    return digest.hexdigest()


@cache
def package_versions() -> dict[str, str]:
    """Versions of the packages that a result depends on, of those that are installed; imports none of them."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
