"""Refuses to open what is no regular file: opening a pipe waits for its writer, perhaps for ever."""

from pathlib import Path

from day0.errors import Day0Error


def regular(path: Path) -> Path:
    """`path` itself. Raises Day0Error when a pipe, a device or a folder stands there; nothing at all may."""
    if path.exists() and not path.is_file():
        raise Day0Error(f"{path} is no regular file", hint="name a file, not a pipe, a device or a folder")
    return path
