"""A pipe where a file should be is an error, not a wait."""

import os
import shutil
import signal

import pytest

from day0.demo import model_path
from day0.errors import Day0Error
from day0.mapping.device import load_device
from day0.pipeline import RunOptions, open_line
from tests.cli.run_day0 import day0


@pytest.fixture(autouse=True)
def bounded():
    """A wait for a writer that never comes ends as a failure of the test."""

    def late(number, frame):
        raise TimeoutError("day0 waits for the pipe's writer")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_path(), tmp_path / "toy")
    os.mkfifo(tmp_path / "pipe.yaml")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("decompose", "toy", "--recipe", "pipe.yaml"),
        ("recipes", "show", "pipe.yaml"),
    ],
)
def test_a_pipe_named_as_a_file_is_refused(here, capsys, arguments):
    ran = day0(capsys, *arguments)
    assert ran.code == 2 and "pipe.yaml is no regular file\n" in ran.err


def test_a_device_file_that_is_a_pipe_is_refused(here):
    with pytest.raises(Day0Error, match="pipe.yaml is no regular file"):
        load_device("pipe.yaml")


def test_a_recording_that_is_a_pipe_is_refused(here):
    line = open_line("toy", RunOptions(golden=here / "pipe.yaml"))
    with pytest.raises(Day0Error, match="pipe.yaml is no regular file"):
        line.expected("align")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "modeling_toy.py"])
def test_a_pipe_in_a_repo_is_refused(here, capsys, name):
    (here / "toy" / name).unlink(missing_ok=True)
    os.mkfifo(here / "toy" / name)
    ran = day0(capsys, "decompose", "toy")
    assert ran.code == 2 and f"error: toy/{name} is no regular file\n" in ran.err
    assert not (here / "toy.day0").exists()


def test_a_pipe_in_a_workspace_is_refused(here, capsys):
    (here / "toy.day0").mkdir()
    os.mkfifo(here / "toy.day0" / "workspace.json")
    ran = day0(capsys, "status", "-w", "toy.day0")
    assert ran.code == 2 and ran.err.startswith("error: toy.day0/workspace.json is no regular file\n")


def test_a_pipe_among_artifacts_is_no_artifact(here, capsys):
    open_line("toy", RunOptions()).workspace.claim()
    os.mkfifo(here / "toy.day0" / "inventory.json")
    assert day0(capsys, "status", "--json").json["stages"][0]["state"] == "missing"
    ran = day0(capsys, "map", "toy")
    assert ran.code == 2 and ran.err.startswith("error: toy.day0/inventory.json is no regular file\n")
