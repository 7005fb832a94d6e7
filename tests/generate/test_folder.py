"""The package folder: edits are the user's, a killed run leaves a whole package."""

import json

import pytest

from day0.artifacts.base import Provenance
from day0.artifacts.manifest import Manifest
from day0.errors import Day0Error
from day0.generate import folder as package_folder
from day0.generate.folder import edited_files, recover, write_package

FACTS = {
    "model": "m", "source": "m", "model_hash": "0", "recipe": "r", "layers": 1, "whole": True, "dummy_weights": False,
    "labels": [], "produced_by": Provenance(day0_version="0", model_hash="0").model_dump(),
}  # fmt: skip
FIRST = {"model.py": "one\n", "README.md": "read me\n"}


@pytest.fixture
def package(tmp_path):
    path = tmp_path / "package"
    write_package(path, FIRST, FACTS, force=False)
    return path


def test_edits_are_found_and_never_overwritten_without_force(package):
    assert edited_files(package) == []
    (package / "model.py").write_text("mine\n")
    assert edited_files(package) == ["model.py"]
    with pytest.raises(Day0Error, match="model.py was edited"):
        write_package(package, {**FIRST, "model.py": "two\n"}, FACTS, force=False)
    assert (package / "model.py").read_text() == "mine\n"
    write_package(package, {**FIRST, "model.py": "two\n"}, FACTS, force=True)
    assert (package / "model.py").read_text() == "two\n" and edited_files(package) == []


def test_an_edit_equal_to_the_new_content_is_no_obstacle(package):
    (package / "model.py").write_text("two\n")
    write_package(package, {**FIRST, "model.py": "two\n"}, FACTS, force=False)
    assert edited_files(package) == []


def test_files_of_the_users_own_are_kept_and_dropped_ones_go(package):
    (package / "notes.txt").write_text("keep")
    write_package(package, {"model.py": "two\n"}, FACTS, force=False)
    assert (package / "notes.txt").read_text() == "keep"
    assert not (package / "README.md").exists()


def test_a_deleted_generated_file_is_no_edit(package):
    (package / "model.py").unlink()
    assert edited_files(package) == []


@pytest.mark.parametrize("moment", ["before the swap", "inside the swap"])
def test_a_killed_run_leaves_the_old_package(package, monkeypatch, moment):
    class Killed(BaseException):
        pass

    def die(*args):
        raise Killed

    if moment == "before the swap":
        monkeypatch.setattr(package_folder, "file_hash", die)
    else:
        # the old package is moved away first: let that rename pass and die at the second
        rename, calls = type(package).rename, []

        def second_dies(self, target):
            calls.append(target)
            if len(calls) == 2:
                raise Killed
            return rename(self, target)

        monkeypatch.setattr(type(package), "rename", second_dies)
    with pytest.raises(Killed):
        write_package(package, {"model.py": "two\n"}, FACTS, force=True)
    monkeypatch.undo()
    recover(package)
    assert (package / "model.py").read_text() == "one\n" and edited_files(package) == []
    write_package(package, {"model.py": "two\n"}, FACTS, force=False)
    assert (package / "model.py").read_text() == "two\n"
    assert sorted(p.name for p in package.parent.iterdir()) == ["package"]


def test_damaged_manifests_are_errors(package, tmp_path):
    (package / "manifest.json").write_text("{")
    with pytest.raises(Day0Error, match="damaged"):
        edited_files(package)
    with pytest.raises(Day0Error, match="damaged"):
        Manifest.read(package)
    with pytest.raises(Day0Error, match="holds no package"):
        Manifest.read(tmp_path / "nowhere")
    write_package(package, FIRST, FACTS, force=True)
    assert json.loads((package / "manifest.json").read_text())["model"] == "m"


@pytest.mark.parametrize("manifest", [None, "{", "[]", "{}", '{"files": ["model.py"]}'])
def test_a_package_of_unknown_origin_is_never_overwritten_without_force(package, manifest):
    path = package / "manifest.json"
    path.unlink() if manifest is None else path.write_text(manifest)
    (package / "model.py").write_text("mine\n")
    with pytest.raises(Day0Error, match="model.py was edited" if manifest is None else "damaged"):
        write_package(package, {"model.py": "two\n"}, FACTS, force=False)
    assert (package / "model.py").read_text() == "mine\n"
    write_package(package, {"model.py": "two\n"}, FACTS, force=True)
    assert (package / "model.py").read_text() == "two\n" and edited_files(package) == []
