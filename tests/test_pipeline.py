import json
import shutil
import time
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from day0.artifacts.manifest import Manifest
from day0.demo import model_path
from day0.errors import Day0Error
from day0.language.recipe import find_recipe, write_recipe
from day0.pipeline import Line, RunOptions, inventory_changes, open_line, open_model, store_baseline
from day0.repo.files import LocalFiles
from day0.repo.model_repo import ModelRepo
from day0.workspace import ARTIFACTS, STAGES
from tests.check.alignments import alignment
from tests.mapping.inventories import inventory_of_config


@cache
def demo_inventory():
    return inventory_of_config(open_model("demo").config)


class Quick(Line):
    """The line with decompose and align replaced by records that say what `holds` says."""

    holds = {"decompose": True, "align": "holds"}

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.ran = []

    def _run(self, stage, say):
        self.ran.append(stage)
        return super()._run(stage, say)

    def _decompose(self):
        holds = self.holds["decompose"]
        faults = () if holds else ("q_rotary: by hand",)
        update = {"produced_by": self.expected("decompose"), "holds": holds, "faults": faults}
        made = demo_inventory().model_copy(update=update)
        made.write(self.workspace.folder)
        return "holds" if holds else "does not hold"

    def _generate(self):
        package = self.workspace.folder / "package"
        package.mkdir(exist_ok=True)
        facts = {
            "model": "demo", "source": "demo", "model_hash": self.repo.hash, "recipe": "r", "layers": 1, "whole": True,
            "dummy_weights": False, "labels": (), "files": {}, "produced_by": self.expected("generate"),
        }  # fmt: skip
        (package / "manifest.json").write_text(Manifest(**facts).model_dump_json())
        return ""

    def _align(self, say):
        say("align: exactness: holds")
        verdict = self.holds["align"]
        made = alignment(holds=verdict, gate=verdict).model_copy(update={"produced_by": self.expected("align")})
        made.write(self.workspace.folder)
        return made.holds


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """quick(**options): a fresh Quick line on ./demo.day0."""
    monkeypatch.chdir(tmp_path)

    def make(**options):
        plain = open_line("demo", RunOptions(**options))
        return Quick(plain.repo, plain.workspace, RunOptions(**options))

    return make


def test_the_line_runs_once_and_then_reuses(quick):
    line = quick()
    outcome = line.run()
    assert outcome.verdict == "holds" and outcome.ran == STAGES and outcome.reused == ()
    again = quick()
    assert again.run().reused == STAGES and again.ran == []


def test_a_run_resumes_at_the_first_stage_whose_inputs_changed(quick):
    quick().run()
    folder = quick().workspace.folder
    (folder / "plan.yaml").write_text((folder / "plan.yaml").read_text() + "\n")
    outcome = quick().run()
    assert outcome.reused == ("decompose", "map") and outcome.ran == ("generate", "align")


def test_a_lost_artifact_is_made_again_and_what_follows_only_when_it_differs(quick):
    quick().run()
    (quick().workspace.folder / "plan.yaml").unlink()
    outcome = quick().run()
    assert outcome.ran == ("map",), "the new plan equals the old one, so what was made from it stands"


def test_from_runs_that_stage_and_all_after_it(quick):
    quick().run()
    outcome = quick().run(start="generate")
    assert outcome.reused == ("decompose", "map") and outcome.ran == ("generate", "align")


def test_from_a_stage_whose_inputs_are_missing_runs_those_first(quick):
    assert quick().run(start="align").ran == STAGES


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        ({"device": "h200"}, ("map", "generate", "align")),
        ({"dtype": "float64"}, ("map", "generate", "align")),
        ({"layers": 2}, ("generate", "align")),
        ({"dummy_weights": True}, ("generate", "align")),
        ({"greedy_tokens": 8}, ("align",)),
        ({"force": True}, ()),
    ],
)
def test_an_option_reruns_the_stages_that_depend_on_it(quick, options, ran):
    quick().run()
    assert quick(**options).run().ran == ran


def test_changed_seed_reruns_decompose(quick):
    quick().run()
    assert quick(seed=1).run().ran[0] == "decompose"


def test_a_gate_that_fails_stops_the_line(quick, monkeypatch):
    monkeypatch.setitem(Quick.holds, "decompose", False)
    outcome = quick().run()
    assert (outcome.verdict, outcome.stopped_at, outcome.ran) == ("does not hold", "decompose", ("decompose",))
    assert outcome.why == ("q_rotary: by hand",)
    assert not (quick().workspace.folder / "plan.yaml").exists()
    again = quick().run()
    assert again.stopped_at == "decompose" and again.ran == (), "a fresh verdict is not asked for twice"


@pytest.mark.parametrize("verdict", ["does not hold", "inconclusive"])
def test_aligns_verdict_is_the_lines(quick, monkeypatch, verdict):
    monkeypatch.setitem(Quick.holds, "align", verdict)
    outcome = quick().run()
    assert (outcome.verdict, outcome.stopped_at, outcome.ran) == (verdict, "align", STAGES)
    assert outcome.why == ("exactness: by hand",)


def test_a_killed_stage_leaves_a_line_that_resumes(quick, monkeypatch):
    line = quick()
    monkeypatch.setattr(line, "_generate", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        line.run()
    outcome = quick().run()
    assert outcome.reused == ("decompose", "map") and outcome.ran == ("generate", "align")


@pytest.fixture
def mine(tmp_path):
    """mine.yaml: the demo's recipe under another name."""
    path = tmp_path / "mine.yaml"
    path.write_text(write_recipe(find_recipe(open_model("demo").config)))
    return path


def test_the_recipe_that_a_workspace_was_made_with_is_taken_again(quick, mine, tmp_path, monkeypatch):
    quick(recipe="mine.yaml").run()
    assert quick(recipe=str(mine)).run().ran == (), "one file, however it is named"
    (tmp_path / "below").mkdir()
    folder = quick().workspace.folder.absolute()
    monkeypatch.chdir(tmp_path / "below")
    line = open_line(None, RunOptions(), folder)
    assert line.kept_recipe == str(mine) and {would for _, would, _ in line.dry_run()} == {"reuse"}
    other = open_line(None, RunOptions(recipe=find_recipe(line.repo.config).recipe), folder)
    assert other.kept_recipe is None and other.dry_run()[0][1:] == (
        "run",
        f"--recipe {other.options.recipe} is given now, it was {mine}",
    )


def test_a_recipe_that_is_gone_is_not_passed_over(quick, mine):
    quick(recipe="mine.yaml").run()
    mine.unlink()
    with pytest.raises(
        Day0Error, match=r"demo\.day0 was made with a recipe that fails now: cannot read recipe"
    ) as error:
        quick().run()
    assert "--recipe NAME|FILE" in error.value.hint
    (warning,) = quick().before("generate")
    assert warning.startswith("decompose is out of date (the recipe changed): run `day0 decompose -w demo.day0`, then ")


def test_a_stage_by_itself_warns_of_the_first_stage_that_is_out_of_date(quick):
    quick().run()
    assert [quick().before(stage) for stage in (*STAGES, None)] == [[]] * 5
    quick(device="h200").run_one("map")
    assert quick().before("map") == quick().before("generate") == []
    words = ["generate is out of date (plan.yaml changed): run `day0 generate -w demo.day0` first"]
    assert quick().before("align") == quick().before(None) == words
    with pytest.raises(Day0Error, match=r"align\.json is out of date: generate: plan\.yaml changed") as error:
        store_baseline(quick(), Path("baseline.json"))
    assert error.value.hint == "run `day0 generate -w demo.day0`, then `day0 align -w demo.day0`"


def test_a_stage_by_itself_names_what_never_ran(quick):
    quick().run_one("decompose")
    with pytest.raises(Day0Error, match=r"plan\.yaml does not exist") as error:
        quick().before("align")
    assert error.value.hint == "run `day0 map -w demo.day0`, then `day0 generate -w demo.day0` first"


def test_progress_says_why_a_stage_runs_and_what_it_reached(quick):
    said = []

    @contextmanager
    def progress(text):
        said.append(text)
        yield said.append

    assert quick().dry_run()[0] == ("decompose", "run", "no inventory.json yet")
    quick().run(progress=progress)
    assert said == [*(f"{stage} (no {ARTIFACTS[stage]} yet)" for stage in STAGES), "align: exactness: holds"]
    said.clear()
    quick().run(start="align", progress=progress)
    assert said[0] == "align (asked for)"


def test_a_changed_recipe_reruns_everything(quick, tmp_path):
    recipe = find_recipe(open_model("demo").config)
    path = tmp_path / "mine.yaml"
    path.write_text(write_recipe(recipe))
    quick(recipe=str(path)).run()
    assert quick(recipe=str(path)).run().ran == ()
    path.write_text(write_recipe(recipe.model_copy(update={"paper": "another"})))
    assert quick(recipe=str(path)).run().ran[0] == "decompose"


def states_as_run(**options):
    return {s.stage: (s.state, s.why) for s in open_line(None, RunOptions(**options)).states_as_run()}


def test_a_run_with_options_is_fresh_as_it_was_run_until_what_they_name_changes(quick, tmp_path, monkeypatch):
    recipe, device = tmp_path / "mine.yaml", tmp_path / "mine-cpu.yaml"
    held = find_recipe(open_model("demo").config)
    recipe.write_text(write_recipe(held))
    device.write_text((files("day0.recipes") / "devices" / "cpu.yaml").read_text())
    options = {"recipe": str(recipe), "device": str(device), "layers": 2, "seed": 3, "greedy_tokens": 8}
    quick(**options).run()
    assert states_as_run() == dict.fromkeys(STAGES, ("fresh", ""))
    assert quick(**options).run().ran == ()

    device.write_text(device.read_text() + "# measured again\n")
    assert states_as_run()["map"] == ("stale", "the device file changed")
    assert quick(**options).run().ran[0] == "map"

    recipe.write_text(write_recipe(held.model_copy(update={"paper": "another"})))
    assert states_as_run()["decompose"] == ("stale", "the recipe changed")
    recipe.unlink()
    assert states_as_run()["decompose"] == ("stale", "the recipe changed")


def test_a_new_reference_makes_an_alignment_stale_as_it_was_run(quick, monkeypatch):
    quick().run()
    monkeypatch.setattr(Line, "_reference_hash", "d" * 64)
    assert states_as_run()["align"] == ("stale", "the reference implementation changed")
    with pytest.raises(Day0Error, match="the reference implementation changed"):
        store_baseline(open_line(None, RunOptions()), Path("baseline.json"))


def test_a_workspace_inside_the_repo_leaves_the_model_as_it_is(tmp_path, monkeypatch):
    folder = tmp_path / "toy"
    shutil.copytree(model_path(), folder)
    monkeypatch.chdir(folder)
    line = open_line(".", RunOptions())
    line.workspace.claim()
    (line.workspace.folder / "package").mkdir()
    (line.workspace.folder / "package" / "model.py").write_text("class Model: ...\n")
    again = open_line(".", RunOptions())
    assert again.repo.hash == line.repo.hash and again.workspace.folder == line.workspace.folder


def test_a_folders_path_is_remembered_from_anywhere(tmp_path, monkeypatch):
    shutil.copytree(model_path(), tmp_path / "toy")
    monkeypatch.chdir(tmp_path)
    line = open_line("toy", RunOptions())
    line.workspace.claim()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    again = open_line(None, RunOptions(), Path("..") / line.workspace.folder)
    assert again.repo.hash == line.repo.hash
    assert again.workspace.source == str(tmp_path / "toy") and again.workspace.revision is None


def test_the_commit_of_a_hub_repo_is_remembered(tmp_path, monkeypatch):
    asked = []

    def opened(source, *, revision=None):
        asked.append((source, revision))
        repo = ModelRepo("toy", source, LocalFiles(model_path(), revision="c0ffee"))
        return repo

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("day0.pipeline.open.open_model", opened)
    open_line("org/toy", RunOptions(revision="v1")).workspace.claim()
    again = open_line(None, RunOptions())
    assert asked == [("org/toy", "v1"), ("org/toy", "c0ffee")]
    assert (again.workspace.source, again.workspace.revision) == ("org/toy", "c0ffee")


def test_demo_is_a_reserved_name_and_a_dotted_path_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_path(), tmp_path / "demo")
    assert open_model("demo").files.local_path("config.json").resolve().parent == model_path().resolve()
    assert open_model("./demo").files.local_path("config.json").resolve().parent == (tmp_path / "demo").resolve()
    assert open_model("demo").name == open_model("./demo").name == "demo"


def test_a_workspace_remembers_its_model(quick, tmp_path):
    quick().run()
    assert open_line(None, RunOptions()).repo.name == "demo"
    copy = tmp_path / "copy"
    shutil.copytree(model_path(), copy)
    line = open_line(str(copy), RunOptions())
    line.workspace.claim()
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "note": 1}))
    with pytest.raises(
        Day0Error, match=r"files of .*copy changed since copy\.day0 was made: config\.json\n"
    ) as refused:
        open_line(None, RunOptions(), line.workspace.folder)
    assert "remove copy.day0" in refused.value.hint


def test_a_first_command_that_fails_leaves_no_workspace(quick, monkeypatch, tmp_path):
    def failing(self):
        raise error

    for error in (Day0Error("no"), KeyboardInterrupt()):
        monkeypatch.setattr(Quick, "_decompose", failing)
        for run in (quick().run, lambda: quick().run_one("decompose")):
            with pytest.raises(type(error)):
                run()
            assert list(tmp_path.iterdir()) == []


def test_a_later_command_that_fails_leaves_the_workspace(quick, monkeypatch):
    quick().run_one("decompose")
    before = {p.name: p.read_bytes() for p in Path("demo.day0").iterdir()}
    monkeypatch.setattr(Quick, "_map", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        quick().run()
    assert {p.name: p.read_bytes() for p in Path("demo.day0").iterdir()} == before


def test_two_runs_at_once(quick):
    line = quick()
    with line.workspace.locked():
        begun = time.monotonic()
        with pytest.raises(Day0Error, match="in use by another run"):
            quick().run()
        assert time.monotonic() - begun < 30


def test_the_whole_line_on_a_small_model(tmp_path, monkeypatch, tiny_repo):
    """Every stage as it is, on the smallest model that holds."""
    monkeypatch.chdir(tmp_path)
    line = open_line(str(tiny_repo("kimi_linear")), RunOptions(greedy_tokens=4))
    outcome = line.run()
    assert outcome.verdict == "holds" and outcome.ran == STAGES
    assert open_line(None, RunOptions(greedy_tokens=4)).run().reused == STAGES


def test_the_difference_between_two_models(tmp_path, monkeypatch, tiny_repo):
    monkeypatch.chdir(tmp_path)
    line = open_line(str(tiny_repo("kimi_linear")), RunOptions())
    line.run_one("decompose")
    assert inventory_changes(line, str(tiny_repo("kimi_linear"))) == []
    changes = inventory_changes(line, str(tiny_repo("kimi_linear", rms_norm_eps=1e-3)))
    assert {("config", "rms_norm_eps", 1e-3)} <= {(c["what"], c["name"], c["after"]) for c in changes}
    assert any(c["what"] == "attribute" and c["after"] == 1e-3 for c in changes)
    assert not any(c["what"] in ("operator", "layers", "weight") for c in changes)
