"""Artifacts on disk: whole or not at all, and readable or an error."""

import os
import stat
import threading

import pytest

from day0.artifacts.base import write_atomically
from day0.artifacts.inventory import Inventory
from day0.errors import Day0Error


@pytest.mark.parametrize("content", ["[" * 5000, "{", "[]", "null", '{"schema_version": 99}', '{"schema_version": 1}'])
def test_what_is_no_artifact_is_an_error(tmp_path, content):
    (tmp_path / Inventory.FILE).write_text(content)
    with pytest.raises(Day0Error, match="inventory.json") as caught:
        Inventory.read(tmp_path)
    assert caught.value.hint


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Day0Error, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_pipe_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    write_atomically(path, b"report")
    reader.join(timeout=10)
    assert read == [b"report"] and stat.S_ISFIFO(path.stat().st_mode)


def test_a_pipe_that_nobody_reads_is_an_error_and_no_wait(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("day0.artifacts.base.READER_SECONDS", 0.1)
    failed = []

    def write():
        with pytest.raises(Day0Error, match="cannot write .*pipe: nobody reads it"):
            write_atomically(tmp_path / "pipe", b"report")
        failed.append(True)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert failed == [True]


def test_a_link_stays_a_link(tmp_path):
    """As /dev/stdout is one: what it leads to is written."""
    (tmp_path / "there").mkdir()
    kept = tmp_path / "there" / "report.xml"
    kept.write_bytes(b"old")
    link = tmp_path / "report.xml"
    link.symlink_to(kept)
    write_atomically(link, b"new")
    assert link.is_symlink() and kept.read_bytes() == b"new" and [p.name for p in kept.parent.iterdir()] == [kept.name]
