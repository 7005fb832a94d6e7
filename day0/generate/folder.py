"""The package folder: swapped in whole, never over a user's edits."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from day0.artifacts.base import write_atomically
from day0.artifacts.manifest import Manifest
from day0.artifacts.provenance import file_hash
from day0.errors import Day0Error


def edited_files(folder: Path, names: Iterable[str] = ()) -> list[str]:
    """Generated files whose content is no longer what generate wrote.

    Where no manifest says what was written, any of `names` that stands there is taken for the user's. Raises Day0Error
    for a damaged manifest.
    """
    if not (folder / Manifest.FILE).is_file():
        return [name for name in names if (folder / name).is_file()]
    return Manifest.read(folder).edited_files(folder)


def write_package(folder: Path, contents: Mapping[str, str], facts: Mapping[str, Any], *, force: bool) -> None:
    """Write a package so that a killed run leaves the old one or the new one.

    Files in the folder that generate did not write are kept. Raises Day0Error naming the files a user edited, unless
    `force` or the new content equals the edit. `facts`: the fields of `Manifest`, but for the files.
    """
    recover(folder)
    if not force:
        changed = edited_files(folder, contents)
        edited = [n for n in changed if contents.get(n, "").encode() != (folder / n).read_bytes()]
        if edited:
            raise Day0Error(
                f"{', '.join(str(folder / n) for n in edited)} was edited since it was generated",
                hint="keep the edit elsewhere, or overwrite it with --force",
            )
    new = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    try:
        shutil.rmtree(new, ignore_errors=True)
        if folder.is_dir():
            shutil.copytree(folder, new, ignore=shutil.ignore_patterns("__pycache__", *_generated(folder)))
        for name, text in contents.items():
            write_atomically(new / name, text.encode())
        digests = {name: file_hash(new / name) for name in contents}
        write_atomically(new / Manifest.FILE, (json.dumps({**facts, "files": digests}, indent=1) + "\n").encode())
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise Day0Error(f"cannot write {folder}: {error.strerror}", hint="free space or choose another -w") from error


def recover(folder: Path) -> None:
    """Put back the old package when a run was killed between moving it away and moving the new one in."""
    old = folder.with_name(f".{folder.name}.old")
    if old.is_dir() and not folder.exists():
        old.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _generated(folder: Path) -> list[str]:
    try:
        return [Manifest.FILE, *Manifest.read(folder).files]
    except Day0Error:
        return [Manifest.FILE]
