"""The files of a model repo, wherever they lie: the interface, and a local folder behind it."""

import os
from pathlib import Path, PurePosixPath
from typing import Protocol

from day0.artifacts.regular import regular
from day0.errors import Day0Error
from day0.repo.headers import FileHeader, read_file_header

MAX_TEXT_BYTES = 256 * 1024 * 1024  # the largest tokenizer.json in use is about 35 MB
_MAX_FILES = 100_000
WORKSPACE_SUFFIX = ".day0"
WORKSPACE_IDENTITY = "workspace.json"


class RepoFiles(Protocol):
    """Read access to one revision of a repo. Paths are relative, with forward slashes.

    Every method raises Day0Error when the file is not there or cannot be read.
    """

    revision: str | None

    def names(self) -> frozenset[str]:
        """Paths of all files of the repo."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Content of a small file (never called for weights)."""
        ...

    def safetensors_header(self, path: str, *, headers_only: bool) -> FileHeader:
        """Header of a weight file; transfers nothing beyond header + 64 KiB."""
        ...

    def read_range(self, path: str, start: int, end: int) -> bytearray:
        """Bytes [start, end) of a weight file."""
        ...

    def local_path(self, path: str) -> Path:
        """Path of the whole file on this machine, downloaded first where it must be."""
        ...


def check_relative(path: str, named_by: str) -> str:
    """Return `path` when it stays inside a repo; raise Day0Error for an absolute path, `..` or a backslash."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or not path.isprintable():
        raise Day0Error(
            f"{named_by} names {path!r}, a path outside the repo",
            hint="a repo may only name its own files: do not use this repo unless you trust its author",
        )
    return path


class LocalFiles:
    """A folder on this machine. Links that lead out of it are refused (a hub cache snapshot may use its own blobs)."""

    revision: str | None

    def __init__(self, root: Path, *, revision: str | None = None) -> None:
        self.root = root
        self.revision = revision
        resolved = root.resolve()
        self._allowed_roots = [resolved]
        if resolved.parent.name == "snapshots":  # a snapshot in the hub cache links to the blobs beside it
            self._allowed_roots.append(resolved.parent.parent / "blobs")

    def names(self) -> frozenset[str]:
        """Paths of all files, but for hidden folders and workspaces: what day0 writes there is not the repo's."""
        names: list[str] = []
        for folder, subfolders, files in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if not _is_hidden_or_workspace(Path(folder) / name)]
            names.extend((Path(folder) / file).relative_to(self.root).as_posix() for file in files)
            if len(names) > _MAX_FILES:
                raise Day0Error(
                    f"{self.root} holds more than {_MAX_FILES} files", hint="point at the folder of one model"
                )
        return frozenset(names)

    def read_bytes(self, path: str) -> bytes:
        file = self.local_path(path)
        try:
            if file.stat().st_size > MAX_TEXT_BYTES:
                raise Day0Error(
                    f"{path} has {file.stat().st_size} bytes, too many for a text file",
                    hint="check that the file is what its name says",
                )
            return file.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error

    def safetensors_header(self, path: str, *, headers_only: bool) -> FileHeader:
        return read_file_header(self.local_path(path), file=path, headers_only=headers_only)

    def read_range(self, path: str, start: int, end: int) -> bytearray:
        data = bytearray(end - start)
        try:
            with self.local_path(path).open("rb") as handle:
                handle.seek(start)
                count = handle.readinto(data)
        except OSError as error:
            raise _unreadable(path, error) from error
        if count != len(data):
            raise Day0Error(
                f"{path}: only {count} of {len(data)} bytes at offset {start} are there",
                hint="the file is truncated (or holds a header without weights): download it again",
            )
        return data

    def local_path(self, path: str) -> Path:
        file = self.root / path
        try:
            target = file.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
            raise Day0Error(f"{path} is not in {self.root}", hint="check that the repo is complete") from error
        if not any(target.is_relative_to(root) for root in self._allowed_roots):
            raise Day0Error(
                f"{path} is a link to {target}, outside the repo",
                hint="copy the file into the folder, or open the folder that holds it",
            )
        return regular(file)


def _is_hidden_or_workspace(folder: Path) -> bool:
    name = folder.name
    return name.startswith(".") or name.endswith(WORKSPACE_SUFFIX) or (folder / WORKSPACE_IDENTITY).is_file()


def _unreadable(path: str, error: OSError) -> Day0Error:
    return Day0Error(
        f"{path} cannot be read ({error.strerror or error})", hint="check the file's permissions and the disk"
    )
