"""Evidence records: what their hash covers, and when a part is stale."""

import json
import subprocess

import pytest

from tests.evidence import evidence


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """An empty checkout that evidence is written in."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=60)
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path / "docs" / "evidence")
    return tmp_path


def written(checkout, **files):
    for name, text in files.items():
        (checkout / f"{name}.py").write_text(text)
    parts = {name: evidence.measured([f"{name}.py"], {"rate": 0.5}) for name in files}
    evidence.write("speed", command="make speed", summary={"rate": 0.5}, parts=parts)
    return evidence.read("speed")


def test_a_record_says_when_from_what_and_how_to_repeat(checkout):
    record = written(checkout, a="x = 1\n", b="x = 2\n")
    assert set(record) == {"command", "commit", "date", "inputs", "summary", "parts"}
    assert record["parts"]["a"]["files"] == ["a.py"] and record["parts"]["a"]["rate"] == 0.5
    assert record["parts"]["a"]["inputs"] != record["parts"]["b"]["inputs"]
    assert record["date"].endswith("+00:00") and record["command"] == "make speed"


def test_only_the_part_whose_files_changed_is_stale(checkout):
    record = written(checkout, a="x = 1\n", b="x = 2\n")
    assert evidence.stale_parts(record) == []
    (checkout / "b.py").write_text("x = 3\n")
    assert evidence.stale_parts(record) == ["b"]
    (checkout / "a.py").unlink()
    assert evidence.stale_parts(record) == ["a", "b"]


def test_a_part_that_would_depend_on_other_files_is_stale(checkout):
    part = written(checkout, a="x = 1\n")["parts"]["a"]
    (checkout / "c.py").write_text("")
    assert evidence.is_fresh(part, ["a.py"])
    assert not evidence.is_fresh(part, ["a.py", "c.py"])
    assert not evidence.is_fresh(None)


@pytest.mark.parametrize(
    "after",
    [
        '"""Other words."""\nx = 1\n\n\ndef f():\n    """And other words\n    on two lines."""\n    return "#1"\n',
        'x = 1  # why\n# more\ndef f():\n    return "#1"\n',
    ],
)
def test_comments_docstrings_and_blank_lines_are_no_change(checkout, after):
    record = written(checkout, a='"""Words."""\nx = 1\n\n\ndef f():\n    """Words."""\n    return "#1"\n')
    (checkout / "a.py").write_text(after)
    assert evidence.stale_parts(record) == []


@pytest.mark.parametrize("after", ['x = 1\ny = "#2"\n', 'x = 2\ny = "#1"\n', 'if x:\n    x = 1\ny = "#1"\n', ""])
def test_whatever_runs_is_a_change(checkout, after):
    record = written(checkout, a='x = 1\ny = "#1"\n')
    (checkout / "a.py").write_text(after)
    assert evidence.stale_parts(record) == ["a"]


def test_other_files_count_to_the_byte(checkout):
    (checkout / "a.yaml").write_text("x: 1\n")
    before = evidence.digest(["a.yaml"])
    (checkout / "a.yaml").write_text("x: 1 # why\n")
    assert evidence.digest(["a.yaml"]) != before


def test_contents_do_not_run_into_each_other(checkout):
    (checkout / "a.txt").write_text("12")
    (checkout / "b.txt").write_text("3")
    before = evidence.digest(["a.txt", "b.txt"])
    (checkout / "a.txt").write_text("1")
    (checkout / "b.txt").write_text("23")
    assert evidence.digest(["a.txt", "b.txt"]) != before


def test_an_edited_record_is_refused(checkout):
    written(checkout, a="x = 1\n")
    path = checkout / "docs" / "evidence" / "speed.json"
    record = json.loads(path.read_text())
    record["parts"]["a"]["inputs"] = "0" * 64
    with pytest.raises(ValueError, match="hash"):
        evidence.stale_parts(record)


def test_the_commit_says_whether_the_inputs_are_committed(checkout):
    def git(*args):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *args], cwd=checkout, check=True, timeout=60, capture_output=True)

    assert written(checkout, a="x = 1\n")["commit"] == "unknown"
    git("add", "a.py")
    git("commit", "-q", "-m", "a")
    committed = written(checkout, a="x = 1\n")["commit"]
    assert len(committed) == 12
    assert written(checkout, a="x = 2\n")["commit"] == f"{committed}+"
