import errno
import json
import os
import shlex
import subprocess
import sys
import threading

import pytest

import day0
from day0.artifacts.manifest import Manifest
from day0.artifacts.provenance import kernel_set_hash, package_versions, produced_by
from day0.errors import Day0Error
from day0.mapping import MapOptions, load_device, run
from day0.workspace import IDENTITY, STAGES, ModelChanged, Workspace
from tests.mapping.inventories import inventory, operator

MODEL = "a" * 64


@pytest.fixture
def workspace(tmp_path):
    made = Workspace.of_model("toy", "some/toy", MODEL, tmp_path / "toy.day0")
    made.claim()
    return made


def fill(workspace, *, flags=None, until="align"):
    """Artifacts of every stage up to `until`, as a run just now would leave them."""
    for stage in STAGES[: STAGES.index(until) + 1]:
        by = produced_by(
            model_hash=workspace.model_hash, device="cpu", flags=flags, inputs=workspace.input_hashes(stage)
        )
        held = inventory([operator("l", "linear", {"in_features": 4, "out_features": 8})])
        if stage == "decompose":
            held.model_copy(update={"produced_by": by}).write(workspace.folder)
        elif stage == "map":
            run(held, load_device("cpu"), MapOptions(), by).write(workspace.folder)
        elif stage == "generate":
            package = workspace.folder / "package"
            package.mkdir(exist_ok=True)
            (package / "model.py").write_text("class Model: ...\n")
            facts = {
                "model": "toy", "source": "toy", "model_hash": MODEL, "recipe": "toy", "layers": 1, "whole": True,
                "dummy_weights": False, "labels": (), "files": {"model.py": "0" * 64}, "produced_by": by,
            }  # fmt: skip
            (package / "manifest.json").write_text(Manifest(**facts).model_dump_json())
        else:
            alignment(by).write(workspace.folder)


def alignment(by, holds="holds"):
    from day0.artifacts.alignment import Alignment

    return Alignment(produced_by=by, model="toy", holds=holds, gates=())


def states(workspace, **options):
    return {s.stage: s.state for s in workspace.states(**options)}


def why(workspace, stage, **options):
    return next(s.why for s in workspace.states(**options) if s.stage == stage)


def test_the_folder_is_named_after_the_model_beside_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Workspace.of_model("GLM-5.3-Flash", "zai-org/GLM-5.3-Flash", MODEL)
    made.claim()
    assert (tmp_path / "GLM-5.3-Flash.day0" / IDENTITY).is_file()
    assert Workspace.find().source == "zai-org/GLM-5.3-Flash"


def test_nothing_is_written_before_the_claim(tmp_path):
    Workspace.of_model("toy", "toy", MODEL, tmp_path / "toy.day0")
    assert not (tmp_path / "toy.day0").exists()


def test_another_models_workspace_is_refused(workspace):
    assert Workspace.of_model("toy", "some/toy", MODEL, workspace.folder).folder == workspace.folder
    with pytest.raises(Day0Error, match="workspace of another model: some/toy"):
        Workspace.of_model("toy", "other/toy", "b" * 64, workspace.folder)


@pytest.mark.parametrize(
    ("then", "now", "named"),
    [
        ({"config.json": "1", "w": "1"}, {"config.json": "2", "w": "1"}, "config.json"),
        ({"config.json": "1"}, {"config.json": "1", "model.py": "1"}, "model.py"),
        ({"config.json": "1", "model.py": "1"}, {"config.json": "1"}, "model.py"),
        ({}, {str(n): "1" for n in range(7)}, "0, 1, 2, 3, 4 and 2 more"),
    ],
)
def test_the_same_model_with_other_files_is_told_from_another_model(tmp_path, then, now, named):
    folder = tmp_path / "toy.day0"
    Workspace.of_model("toy", "some/toy", MODEL, folder, model_files=then).claim()
    with pytest.raises(ModelChanged, match=f"files of some/toy changed since .* was made: {named}\n") as told:
        Workspace.of_model("toy", "some/toy", "b" * 64, folder, model_files=now)
    assert told.value.workspace.model_hash == "b" * 64 and f"remove {folder}" in told.value.hint


def test_another_revision_of_the_model_is_named(tmp_path):
    folder = tmp_path / "toy.day0"
    Workspace.of_model("toy", "some/toy", MODEL, folder, revision="one").claim()
    with pytest.raises(Day0Error, match="made from revision one of some/toy, not two"):
        Workspace.of_model("toy", "some/toy", "b" * 64, folder, revision="two")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "toy.day0").mkdir()
    Workspace.of_model("toy", "toy", MODEL, tmp_path / "toy.day0")
    (tmp_path / "toy.day0" / "thesis.tex").write_text("precious")
    with pytest.raises(Day0Error, match="is no workspace"):
        Workspace.of_model("toy", "toy", MODEL, tmp_path / "toy.day0")
    (tmp_path / "file.day0").write_text("")
    with pytest.raises(Day0Error, match="is no workspace"):
        Workspace.of_model("toy", "toy", MODEL, tmp_path / "file.day0")


def test_finding_the_only_workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Day0Error, match="no workspace stands here"):
        Workspace.find()
    for name in ("a", "b"):
        Workspace.of_model(name, name, MODEL).claim()
    with pytest.raises(Day0Error, match=r"2 workspaces stand here: a\.day0, b\.day0"):
        Workspace.find()
    assert Workspace.find(tmp_path / "b.day0").name == "b"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": "toy"}'])
def test_a_damaged_identity_is_named(workspace, content):
    (workspace.folder / IDENTITY).write_text(content)
    with pytest.raises(Day0Error, match=r"workspace\.json is damaged"):
        Workspace.open(workspace.folder)


def test_an_empty_workspace_misses_everything(workspace):
    assert states(workspace) == dict.fromkeys(STAGES, "missing")
    assert why(workspace, "map") == "plan.yaml does not exist"


def test_a_finished_run_is_fresh(workspace):
    fill(workspace)
    assert states(workspace) == dict.fromkeys(STAGES, "fresh")
    assert [s.verdict for s in workspace.states()] == ["holds", "", "", "holds"]


def test_an_edited_inventory_makes_all_after_it_stale(workspace):
    fill(workspace)
    path = workspace.folder / "inventory.json"
    path.write_text(path.read_text().replace('"layers": 1', '"layers": 2'))
    assert states(workspace) == {"decompose": "fresh", "map": "stale", "generate": "stale", "align": "stale"}
    assert why(workspace, "map") == "inventory.json changed"
    assert why(workspace, "align") == "map has to run first"


def test_an_edit_of_the_package_makes_align_alone_stale(workspace):
    fill(workspace)
    (workspace.folder / "package" / "model.py").write_text("class Model: mine = True\n")
    assert states(workspace) == {"decompose": "fresh", "map": "fresh", "generate": "fresh", "align": "stale"}
    assert why(workspace, "align") == "package/model.py changed"


def test_a_file_added_to_or_lost_from_the_package_counts_too(workspace):
    fill(workspace)
    extra = workspace.folder / "package" / "helper.py"
    extra.write_text("x = 1\n")
    assert why(workspace, "align") == "package/helper.py changed"
    extra.unlink()
    (workspace.folder / "package" / "__pycache__").mkdir()
    (workspace.folder / "package" / "__pycache__" / "model.pyc").write_bytes(b"")
    assert why(workspace, "align") == ""
    (workspace.folder / "package" / "model.py").unlink()
    assert why(workspace, "align") == "package/model.py changed"
    assert states(workspace)["generate"] == "invalid" and why(workspace, "generate") == "package/model.py is missing"


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_another_version_of_a_library_makes_what_asked_the_reference_stale(workspace, monkeypatch, library):
    fill(workspace)
    there = package_versions()
    monkeypatch.setattr("day0.workspace.package_versions", lambda: {**there, library: "99.0"})
    found = {s.stage: (s.state, s.why) for s in workspace.states()}
    assert found["decompose"] == found["align"] == ("stale", f"{library} is 99.0, it was {there[library]}")
    assert found["map"][1] == "decompose has to run first"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("model_hash", "b" * 64, "the model changed"),
        ("kernel_set", "c" * 64, "the kernels changed"),
        ("day0_version", "0.0.1", "made by day0 0.0.1"),
    ],
)
def test_what_else_makes_an_artifact_stale(workspace, field, value, words):
    fill(workspace)
    path = workspace.folder / "align.json"
    record = json.loads(path.read_text())
    record["produced_by"][field] = value
    path.write_text(json.dumps(record))
    assert states(workspace)["align"] == "stale" and why(workspace, "align") == words


def test_options_count_only_where_they_are_expected(workspace):
    fill(workspace, flags={"recipe": "mine.yaml"})
    assert states(workspace)["decompose"] == "fresh"

    def expected(**fields):
        by = produced_by(model_hash=MODEL, device="cpu", flags={"recipe": "mine.yaml"})
        return {"decompose": by.model_copy(update=fields)}

    assert why(workspace, "decompose", expected=expected()) == ""
    changed = expected(reference_hash="d" * 64)
    assert why(workspace, "decompose", expected=changed) == "the reference implementation changed"


@pytest.mark.parametrize(
    ("flags", "now", "words"),
    [
        ({"recipe": "r.yaml", "recipe_hash": "1"}, {}, "--recipe r.yaml is not given now"),
        ({"recipe_hash": "1"}, {"recipe": "r.yaml", "recipe_hash": "2"}, "--recipe r.yaml is given now"),
        ({"recipe": "a.yaml"}, {"recipe": "b.yaml"}, "--recipe b.yaml is given now, it was a.yaml"),
        ({"recipe_hash": "1"}, {"recipe_hash": "2"}, "the recipe changed"),
        ({"device_hash": "1"}, {"device_hash": "2"}, "the device file changed"),
        ({}, {"device": "h200"}, "--device h200 is given now, it was cpu"),
        ({"layers": 2}, {"dummy_weights": True}, "--dummy-weights is given now; --layers 2 is not given now"),
        ({"texts": ["a", "b"]}, {"seed": 3}, "--seed 3 is given now; --text a, b is not given now"),
        ({}, {"trust": "sandboxed"}, "--trust-remote-code sandboxed is given now"),
        ({"golden": "f" * 64}, {}, "--golden is not given now"),
        ({"golden": "f" * 64}, {"golden": "e" * 64}, "the recording changed"),
    ],
)  # fmt: skip
def test_changed_options_are_told_as_they_are_typed(workspace, flags, now, words):
    fill(workspace, flags=flags)
    device = now.pop("device", "cpu")
    expected = produced_by(model_hash=MODEL, device=device, flags=now)
    assert why(workspace, "decompose", expected={"decompose": expected}) == words


def test_the_command_of_a_stage_can_be_typed(tmp_path):
    folder = tmp_path / "my model.day0"
    words = shlex.split(Workspace.of_model("toy", "toy", MODEL, folder).command("generate"))
    assert words == ["day0", "generate", "-w", str(folder)]


@pytest.mark.parametrize("stage", STAGES)
def test_a_damaged_artifact_is_invalid_not_fresh(workspace, stage):
    fill(workspace)
    workspace.path(stage).write_text("{")
    found = next(s for s in workspace.states() if s.stage == stage)
    assert found.state == "invalid" and ("not valid" in found.why or "damaged" in found.why)


def test_the_lock_keeps_a_second_run_out(workspace):
    with workspace.locked():
        with pytest.raises(Day0Error, match=rf"in use by another run \(process {os.getpid()}\)"):
            with workspace.locked(wait_seconds=0.1):
                pass
    with workspace.locked(wait_seconds=0.1):
        pass


def test_a_killed_run_leaves_no_lock(workspace):
    code = (
        "import sys, time; from pathlib import Path; from day0.workspace import Workspace\n"
        "with Workspace.open(Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(workspace.folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Day0Error, match=f"process {holder.pid}"):
            with workspace.locked(wait_seconds=0.1):
                pass
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    with workspace.locked(wait_seconds=5):
        pass


def test_a_new_workspace_that_nothing_was_written_in_goes_with_its_folders(tmp_path):
    made = Workspace(tmp_path / "deep" / "er" / "toy.day0", IDENTITY_OF_TOY)
    with pytest.raises(ZeroDivisionError):
        with made.claimed():
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with made.claimed():
        pass
    assert Workspace.open(made.folder).name == "toy"


def test_a_full_disk_leaves_no_workspace(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    made = Workspace(tmp_path / "toy.day0", IDENTITY_OF_TOY)
    monkeypatch.setattr(os, "write", full)  # the lock's
    monkeypatch.setattr(os, "replace", full)  # an artifact's
    with pytest.raises(Day0Error, match=r"cannot write .*workspace\.json: No space left on device"):
        with made.claimed():
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["an artifact", "an older workspace", "a folder of the user's"])
def test_a_failed_command_takes_nothing_away_but_what_it_made(tmp_path, what):
    made = Workspace(tmp_path / "toy.day0", IDENTITY_OF_TOY)
    if what == "an older workspace":
        made.claim()
    elif what == "a folder of the user's":
        made.folder.mkdir()
    with pytest.raises(ZeroDivisionError):
        with made.claimed():
            if what == "an artifact":
                (made.folder / "inventory.json").write_text("{}")
            raise ZeroDivisionError
    left = {p.name for p in made.folder.iterdir()}
    assert (
        left
        == {
            "an artifact": {".lock", "workspace.json", "inventory.json"},
            "an older workspace": {".lock", "workspace.json"},
            "a folder of the user's": set(),
        }[what]
    )


def test_who_waited_for_a_workspace_that_was_taken_away_locks_the_new_one(tmp_path):
    first, second = (Workspace(tmp_path / "toy.day0", IDENTITY_OF_TOY) for _ in range(2))
    waiting = threading.Event()
    wait_for_lock = second._wait_for_lock

    def waits(handle, deadline):
        waiting.set()
        wait_for_lock(handle, deadline)

    second._wait_for_lock = waits
    held = []

    def hold():
        with second.locked():
            with pytest.raises(Day0Error, match="in use"):
                with Workspace(tmp_path / "toy.day0", IDENTITY_OF_TOY).locked(wait_seconds=0.1):
                    pass
            held.append(second.folder.is_dir())

    thread = threading.Thread(target=hold)
    with pytest.raises(ZeroDivisionError):
        with first.claimed():
            thread.start()
            assert waiting.wait(60)
            raise ZeroDivisionError
    thread.join(60)
    assert held == [True]


def test_a_folder_that_cannot_be_written_is_an_error_not_a_crash(tmp_path):
    (tmp_path / "blocked").write_text("a file where the folder should be")
    with pytest.raises(Day0Error, match="cannot write"):
        with Workspace(tmp_path / "blocked" / "toy.day0", IDENTITY_OF_TOY).locked():
            pass


IDENTITY_OF_TOY = {"name": "toy", "source": "toy", "model_hash": MODEL}


def test_provenance_records_versions_and_the_kernel_set():
    by = produced_by(model_hash=MODEL)
    assert by.day0_version == day0.__version__ and by.kernel_set == kernel_set_hash()
    assert by.versions["torch"].startswith("2.") and "transformers" in by.versions


def test_a_lock_that_is_never_the_right_file_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    """As on a file system that numbers its files anew at each look."""
    made = Workspace(tmp_path / "toy.day0", IDENTITY_OF_TOY)
    looks = iter([False] * 1000)
    monkeypatch.setattr(made, "_is_the_lock", lambda handle: next(looks))
    with pytest.raises(Day0Error, match="is in use"):
        with made.locked(wait_seconds=0.0):
            pass
