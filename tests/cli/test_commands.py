"""Commands on a workspace whose inventory is declared, so that no reference has to run."""

import json
import shutil
import subprocess
import sys

import jsonschema
import pytest
import yaml

from day0.demo import model_path
from day0.errors import Day0Error
from day0.kernels.registry import get_kind, kind_names
from day0.pipeline import RunOptions, open_line
from day0.repo import ModelRepo
from tests.check.alignments import alignment, row
from tests.cli.run_day0 import day0, day0_process
from tests.mapping.inventories import inventory_of_config


@pytest.fixture
def line(tmp_path, monkeypatch):
    """The demo's line in ./demo.day0, decomposed."""
    monkeypatch.chdir(tmp_path)
    made = open_line("demo", RunOptions())
    made.workspace.claim()
    held = inventory_of_config(made.repo.config, recipe=made.repo.config["model_type"])
    held.model_copy(update={"produced_by": made.expected("decompose"), "model": "demo"}).write(made.workspace.folder)
    return made


@pytest.fixture
def aligned(line, capsys):
    """The same with a package, and an alignment written by hand."""
    assert day0(capsys, "map", "demo").code == 0
    assert day0(capsys, "generate", "demo").code == 0

    def write(*rows, **fields):
        made = alignment(*rows, **fields).model_copy(update={"produced_by": line.expected("align")})
        made.write(line.workspace.folder)

    return write


def test_kernels_lists_every_kind(capsys):
    rows = day0(capsys, "kernels", "--json").json
    assert [r["kind"] for r in rows] == list(kind_names())
    assert all("torch" in r["implementations"] for r in rows)
    table = day0(capsys, "kernels").out
    assert all(name in table for name in kind_names())
    assert day0(capsys, "kernels", "-q").out.split() == list(kind_names())


def test_kernels_show_names_attributes_and_clauses(capsys):
    shown = day0(capsys, "kernels", "show", "norm", "--json").json
    assert {a["attribute"] for a in shown["attributes"]} == set(get_kind("norm").attributes.model_fields)
    assert {"implementation": "torch", "clause": "eps", "allowed": "0.0 <= value"}.items() <= shown["clauses"][
        1
    ].items()
    assert "an unknown" not in day0(capsys, "kernels", "show", "norm").out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("kernels", "show", "nrom"), "did you mean norm?"),
        (("schema", "inventroy"), "did you mean inventory?"),
        (("map", "demo", "--device", "h20"), "did you mean h200?"),
        (("recipes", "show", "nothing"), "shipped recipes:"),
    ],
)
def test_unknown_names_get_the_known_ones(line, capsys, arguments, hint):
    ran = day0(capsys, *arguments)
    assert ran.code == 2 and hint in ran.err and len(ran.err.splitlines()) == 2


def test_recipes(capsys):
    rows = day0(capsys, "recipes", "--json").json
    assert rows and all(r["model_types"] for r in rows)
    name = rows[0]["recipe"]
    text = day0(capsys, "recipes", "show", name).out
    schema = day0(capsys, "recipes", "schema").json
    jsonschema.validate(yaml.safe_load(text), schema)
    assert day0(capsys, "recipes", "show", name, "--json").json["recipe"] == name


def test_schemas_fit_what_is_written(line, capsys):
    names = [r["schema"] for r in day0(capsys, "schema", "--json").json]
    assert {"inventory", "plan", "alignment", "baseline", "recipe", "device"} == set(names)
    for name in names:
        jsonschema.Draft202012Validator.check_schema(day0(capsys, "schema", name).json)
    inventory = json.loads((line.workspace.folder / "inventory.json").read_text())
    jsonschema.validate(inventory, day0(capsys, "schema", "inventory").json)


def test_map_writes_the_plan_and_shows_it(line, capsys):
    ran = day0(capsys, "map", "demo", "--device", "h200")
    plan = yaml.safe_load((line.workspace.folder / "plan.yaml").read_text())
    assert ran.code == 0 and f"tier {plan['tier']}: " in ran.out and "longest context: 4096 tokens" in ran.out
    assert plan["warnings"] and all(f"warning: {warning}\n" in ran.err for warning in plan["warnings"])
    assert plan["device"]["device"] == "h200" and plan["dtype"] == "bfloat16"
    jsonschema.validate(plan, day0(capsys, "schema", "plan").json)
    document = day0(capsys, "map", "demo", "--device", "h200", "--json").json
    assert document == plan


def not_holding(line):
    """The same workspace with an inventory that does not hold; the reason."""
    path = line.workspace.folder / "inventory.json"
    reason = "q_rotary: rotary_dim is 8 in the recipe, the reference computes with 16"
    path.write_text(json.dumps({**json.loads(path.read_text()), "holds": False, "faults": [reason]}))
    return reason


def test_run_says_why_it_stopped(line, capsys):
    reason = not_holding(line)
    for flags in (("-q",), (), ("--json",)):
        ran = day0(capsys, "run", "demo", *flags)
        assert ran.code == 1 and f"warning: decompose does not hold: {reason}\n" in ran.err
    assert ran.json["why"] == [reason] and ran.json["stopped_at"] == "decompose"


@pytest.mark.parametrize("verdict", ["does not hold", "inconclusive"])
def test_run_says_which_gate_of_align_stopped_it(aligned, capsys, verdict):
    aligned(holds=verdict, gate=verdict)
    ran = day0(capsys, "run", "demo", "-q")
    assert ran.code == (1 if verdict == "does not hold" else 3)
    assert f"warning: align {verdict}: exactness: by hand\n" in ran.err
    assert day0(capsys, "run", "demo", "--json").json["why"] == ["exactness: by hand"]


def test_a_stage_by_itself_does_not_pass_over_a_gate_that_does_not_hold(line, capsys):
    reason = not_holding(line)
    mapped = day0(capsys, "map", "demo", "-q")
    assert mapped.code == 0 and f"warning: decompose does not hold: {reason}\n" in mapped.err
    plan = yaml.safe_load((line.workspace.folder / "plan.yaml").read_text())
    assert f"decompose does not hold: {reason}" in plan["warnings"]
    refused = day0(capsys, "generate", "demo", "-q")
    error, hint = refused.err.splitlines()
    assert refused.code == 2 and error == f"error: decompose does not hold: {reason}"
    assert "`day0 decompose -w demo.day0`" in hint and "--trust-recipe" in hint
    assert not (line.workspace.folder / "package").exists()


def test_a_package_of_a_contradicted_recipe_says_so(line, capsys):
    path = line.workspace.folder / "inventory.json"
    inventory = json.loads(path.read_text())
    inventory["operators"][0]["evidence"]["contradiction"] = "by hand"  # and holds: --trust-recipe
    path.write_text(json.dumps(inventory))
    name = inventory["operators"][0]["name"]
    day0(capsys, "map", "demo")
    assert day0(capsys, "generate", "demo", "--json").json["labels"] == [
        f"a recipe that the reference contradicts: {name}"
    ]


def test_on_a_cpu_map_and_run_say_once_that_there_is_no_gpu(aligned, capsys):
    aligned(row(1e-13))
    warnings = [
        "warning: the checkpoint is in bfloat16; on cpu it runs in float32",
        "warning: no GPU: every operator runs on PyTorch",
    ]
    assert day0(capsys, "map", "demo", "-q").err.splitlines() == warnings
    ran = day0(capsys, "run", "demo", "-q")
    assert ran.code == 0 and ran.err.splitlines() == warnings


def test_what_is_built_on_work_out_of_date_says_so(aligned, line, capsys):
    aligned(row(1e-13))
    assert day0(capsys, "map", "--device", "h200").code == 0
    words = "generate is out of date (plan.yaml changed): run `day0 generate -w demo.day0` first"
    ran = day0(capsys, "sample", "-q", "--prompt-ids", "5", "--max-tokens", "1")
    assert ran.code == 0 and ran.err.startswith(f"warning: {words}\n")
    ran = day0(capsys, "align", "-q", "--text", "")
    assert ran.code == 2 and ran.err.startswith(f"warning: {words}\n")
    stored = day0(capsys, "check", "--store")
    assert stored.code == 2 and stored.err == (
        "error: align.json is out of date: generate: plan.yaml changed\n"
        "hint: run `day0 generate -w demo.day0`, then `day0 align -w demo.day0`\n"
    )


def test_a_kept_recipe_is_named(line, capsys, tmp_path):
    from day0.language.recipe import find_recipe, write_recipe

    (tmp_path / "mine.yaml").write_text(write_recipe(find_recipe(line.repo.config)))
    with_it = open_line("demo", RunOptions(recipe="mine.yaml"))
    path = line.workspace.folder / "inventory.json"
    inventory = json.loads(path.read_text())
    inventory["produced_by"]["flags"] = with_it.expected("decompose").flags
    path.write_text(json.dumps(inventory))
    ran = day0(capsys, "run", "demo", "--dry-run", "--json")
    assert ran.json["stages"][0]["would"] == "reuse"
    assert ran.err == f"recipe: {tmp_path / 'mine.yaml'}, which demo.day0 was made with\n"


def test_map_without_an_inventory_says_what_comes_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = day0(capsys, "map", "demo")
    assert ran.code == 2 and "inventory.json does not exist" in ran.err and "`day0 decompose -w demo.day0`" in ran.err


def test_the_workspace_stands_in_for_the_model(line, capsys):
    assert day0(capsys, "map").code == 0
    assert day0(capsys, "map", "-w", "demo.day0", "-q").out == "demo.day0/plan.yaml\n"
    elsewhere = day0(capsys, "map", "-w", "nowhere.day0")
    assert elsewhere.code == 2 and "nowhere.day0 is no workspace" in elsewhere.err


def test_status_says_what_is_stale_and_why(line, capsys):
    day0(capsys, "map", "demo")
    stages = {s["stage"]: s for s in day0(capsys, "status", "--json").json["stages"]}
    assert [s["state"] for s in stages.values()] == ["fresh", "fresh", "missing", "missing"]
    path = line.workspace.folder / "inventory.json"
    path.write_text(path.read_text() + "\n")
    stages = {s["stage"]: s for s in day0(capsys, "status", "demo", "--json").json["stages"]}
    assert (stages["map"]["state"], stages["map"]["why"]) == ("stale", "inventory.json changed")
    assert day0(capsys, "status", "-q").out == "map\n"
    assert "inventory.json changed" in day0(capsys, "status").out


def test_dry_run_runs_nothing(line, capsys):
    day0(capsys, "map", "demo")
    before = sorted(p.name for p in line.workspace.folder.iterdir())
    steps = day0(capsys, "run", "demo", "--dry-run", "--json").json["stages"]
    assert [(s["stage"], s["would"]) for s in steps] == [
        ("decompose", "reuse"),
        ("map", "reuse"),
        ("generate", "run"),
        ("align", "run"),
    ]
    steps = day0(capsys, "run", "demo", "--dry-run", "--from", "map", "--json").json["stages"]
    assert [(s["would"], s["why"]) for s in steps[:2]] == [("reuse", "its inputs are unchanged"), ("run", "asked for")]
    steps = day0(capsys, "run", "demo", "--dry-run", "--device", "h200", "--json").json["stages"]
    assert steps[1]["would"] == "run" and steps[1]["why"] == "--device h200 is given now, it was cpu"
    assert sorted(p.name for p in line.workspace.folder.iterdir()) == before


def test_generate_lists_its_files_and_keeps_edits(line, capsys):
    day0(capsys, "map", "demo")
    written = day0(capsys, "generate", "demo", "--layers", "2", "--dummy-weights", "--json")
    assert written.code == 0 and "model.py" in written.json["files"]
    assert written.json["labels"] == ["random weights", "2 of 8 layers"]
    assert "warning: this package has random weights" in written.err
    model = line.workspace.folder / "package" / "model.py"
    model.write_text(model.read_text() + "# mine\n")
    refused = day0(capsys, "generate", "demo")
    assert refused.code == 2 and "was edited" in refused.err and model.read_text().endswith("# mine\n")
    assert day0(capsys, "generate", "demo", "--force").code == 0
    assert not model.read_text().endswith("# mine\n")


def test_more_layers_than_there_are_are_refused(aligned, line, capsys):
    assert day0(capsys, "generate", "--layers", "8", "--json").json["labels"] == []
    ran = day0(capsys, "generate", "demo", "--layers", "999")
    assert ran.code == 2 and ran.err.startswith("error: demo has 8 layers, not 999\n")


def test_what_needs_weights_says_so_where_there_are_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_path(), tmp_path / "toy", ignore=shutil.ignore_patterns("*.safetensors*"))
    made = open_line("toy", RunOptions())
    made.workspace.claim()
    held = inventory_of_config(made.repo.config, recipe=made.repo.config["model_type"])
    held.model_copy(update={"produced_by": made.expected("decompose")}).write(made.workspace.folder)
    assert day0(capsys, "map").code == day0(capsys, "generate").code == 0
    for arguments in (("align",), ("align", "--stream"), ("sample", "--prompt-ids", "5"), ("run",)):
        ran = day0(capsys, *arguments)
        stage = "sample" if "sample" in arguments else "align"
        assert ran.code == 2 and f"error: {stage} needs weights, and " in ran.err and "--dummy-weights" in ran.err
    assert day0(capsys, "generate", "--dummy-weights").code == 0
    assert day0(capsys, "sample", "--prompt-ids", "5", "--max-tokens", "1").code == 0


def test_sample_continues_a_prompt(line, capsys):
    day0(capsys, "map", "demo")
    day0(capsys, "generate", "demo")
    sampled = day0(capsys, "sample", "demo", "--prompt-ids", "5,6,7", "--max-tokens", "3", "--json").json
    assert sampled["prompt_ids"] == [5, 6, 7] and sampled["dtype"] == "float32"
    assert 1 <= len(sampled["tokens"]) <= 3 and all(t["logprob"] <= 0 for t in sampled["tokens"])
    again = day0(capsys, "sample", "demo", "--prompt-ids", "5,6,7", "--max-tokens", "3")
    assert again.out == sampled["text"] + "\n"
    assert day0(capsys, "sample", "--prompt-ids", "1,x").code == 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--prompt-ids", "99999999"), "outside the vocabulary"),
        (("--prompt-ids", "5,-1"), "outside the vocabulary"),
        (("--prompt", ""), "at least one token"),
        (("--prompt-ids", "5", "--max-tokens", "9999"), "10000 tokens are asked for, the model has 4096 positions"),
    ],
)
def test_sample_refuses_a_prompt_before_it_loads_the_package(aligned, capsys, monkeypatch, arguments, what):
    def never(*_, **__):
        raise AssertionError("the package was loaded first")

    monkeypatch.setattr("day0.engine.package.load_package", never)
    ran = day0(capsys, "sample", *arguments)
    assert ran.code == 2 and what in ran.err


PRINTS = """
import os, subprocess
print("python")
os.write(1, b"descriptor\\n")
subprocess.run(["echo", "subprocess"])
"""


def test_what_an_edited_package_prints_stays_out_of_the_answer(aligned, line):
    model = line.workspace.folder / "package" / "model.py"
    model.write_text(model.read_text() + PRINTS)
    asked = ("sample", "--prompt-ids", "5,6,7", "--max-tokens", "1")
    ran = day0_process(*asked, "--json")
    assert ran.code == 0 and ran.json["prompt_ids"] == [5, 6, 7]
    assert {"python", "descriptor", "subprocess"} <= set(ran.err.split())
    assert day0_process(*asked, "-q").out.splitlines() == [ran.json["text"]]


def test_sample_stops_at_the_configs_end_id_where_no_generation_config_is(line, capsys, tmp_path):
    copy = tmp_path / "copy" / "demo"
    shutil.copytree(model_path(), copy)
    (copy / "generation_config.json").unlink(missing_ok=True)
    made = open_line(str(copy), RunOptions(), tmp_path / "copy.day0")
    made.workspace.claim()
    held = inventory_of_config(made.repo.config, recipe=made.repo.config["model_type"])
    held.model_copy(update={"produced_by": made.expected("decompose")}).write(made.workspace.folder)
    at = ("-w", tmp_path / "copy.day0")
    day0(capsys, "map", *at)
    assert day0(capsys, "generate", *at).code == 0
    asked = ("sample", *at, "--prompt-ids", "5,6,7", "--max-tokens", "4", "--json")
    first = day0(capsys, *asked).json["tokens"][0]["id"]

    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "eos_token_id": [first]}))
    moved = ModelRepo.open(copy).hash
    for path in (tmp_path / "copy.day0" / "workspace.json", tmp_path / "copy.day0" / "package" / "manifest.json"):
        path.write_text(path.read_text().replace(made.repo.hash, moved))
    assert [t["id"] for t in day0(capsys, *asked).json["tokens"]] == [first]


def test_sample_without_a_usable_tokenizer_says_so_before_it_runs(aligned, line, capsys, monkeypatch):
    from day0.repo.tokenizer import Tokenizer

    def broken(repo):
        raise Day0Error("tokenizer.json does not load")

    def never(*_, **__):
        raise AssertionError("the package ran first")

    monkeypatch.setattr(Tokenizer, "of_repo", broken)
    monkeypatch.setattr("day0.engine.package.load_package", never)
    ran = day0(capsys, "sample", "--prompt-ids", "5,6,7")
    assert ran.code == 2 and "tokenizer.json does not load" in ran.err


@pytest.mark.parametrize(("text", "what"), [("word " * 5000, "too long for 4096 positions"), ("", "has no tokens")])
def test_align_refuses_a_text_before_it_loads_anything(aligned, capsys, monkeypatch, text, what):
    def never(*_, **__):
        raise AssertionError("the package was loaded first")

    monkeypatch.setattr("day0.align.stage.load_package", never)
    ran = day0(capsys, "align", "demo", "--text", text)
    assert ran.code == 2 and what in ran.err and len(ran.err.splitlines()) == 3  # a line of progress before


def test_sample_of_a_package_that_lost_a_file_is_an_error(aligned, line, capsys):
    (line.workspace.folder / "package" / "weights.json").unlink()
    ran = day0(capsys, "sample", "--prompt-ids", "5,6,7")
    assert ran.code == 2 and "weights.json is missing" in ran.err
    stages = {s["stage"]: s for s in day0(capsys, "status", "--json").json["stages"]}
    assert stages["generate"]["why"] == "package/weights.json is missing"


def test_status_without_its_model_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_path(), tmp_path / "toy")
    open_line("toy", RunOptions()).workspace.claim()
    shutil.rmtree(tmp_path / "toy")
    ran = day0(capsys, "status")
    assert ran.code == 0 and "inventory.json does not exist" in ran.out and "the model was not looked at" in ran.err
    assert day0(capsys, "status", "toy", "-w", "toy.day0").code == 2


def test_status_names_edited_files(aligned, line, capsys):
    assert "edited" not in day0(capsys, "status").out
    assert day0(capsys, "status", "--json").json["edited"] == []
    model = line.workspace.folder / "package" / "model.py"
    model.write_text(model.read_text() + "# mine\n")
    ran = day0(capsys, "status")
    assert ran.code == 0 and "edited since it was generated: package/model.py" in ran.out
    assert day0(capsys, "status", "--json").json["edited"] == ["package/model.py"]


def test_status_of_a_model_whose_files_changed_shows_every_stage_stale(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_path(), tmp_path / "toy")
    made = open_line("toy", RunOptions())
    made.workspace.claim()
    held = inventory_of_config(made.repo.config, recipe=made.repo.config["model_type"])
    held.model_copy(update={"produced_by": made.expected("decompose")}).write(made.workspace.folder)
    config = json.loads((tmp_path / "toy" / "config.json").read_text())
    (tmp_path / "toy" / "config.json").write_text(json.dumps({**config, "note": 1}))
    for named in ((), ("toy",)):
        ran = day0(capsys, "status", *named)
        assert ran.code == 0 and "toy changed since toy.day0 was made: config.json" in ran.err
        assert "the model changed" in ran.out
    ran = day0(capsys, "map")
    assert ran.code == 2 and ran.err.startswith("error: files of ") and "remove toy.day0" in ran.err


def test_check_stores_then_holds_then_fails(aligned, line, capsys, tmp_path, monkeypatch):
    aligned(row(1e-13))
    before = day0(capsys, "check", "demo")
    assert before.code == 2 and "day0 check --store" in before.err
    stored = day0(capsys, "check", "demo", "--store")
    assert (stored.out, stored.err) == ("demo.day0/baseline.json\n", "stored 1 gate, 1 figure, 1 continuation\n")
    held = day0(capsys, "check", "demo")
    assert held.code == 0 and held.out == "check holds: 1 gate, 1 figure, 1 continuation\n"

    aligned(row(9e-13))
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    ran = day0(capsys, "check", "demo", "--json", "--junit", tmp_path / "c.xml", "--markdown", tmp_path / "c.md")
    assert ran.code == 1 and ran.json["verdict"] == "does not hold"
    assert [f["figure"] for f in ran.json["figures"] if f["verdict"] != "holds"] == ["exactness/propagated/attention.y"]
    assert 'failures="1"' in (tmp_path / "c.xml").read_text()
    assert summary.read_text() == (tmp_path / "c.md").read_text() and "does not hold" in summary.read_text()


def test_check_of_a_stale_alignment_is_inconclusive(aligned, line, capsys):
    aligned(row(1e-13))
    assert day0(capsys, "check", "--store").code == 0
    model = line.workspace.folder / "package" / "model.py"
    model.write_text(model.read_text() + "# mine\n")
    ran = day0(capsys, "check")
    assert ran.code == 3 and "package/model.py changed" in ran.out
    assert day0(capsys, "check", "--store").code == 2


def test_doctor_names_everything(capsys):
    ran = day0(capsys, "doctor", "--json")
    rows = {r["what"]: r for r in ran.json}
    assert ran.code == 0
    assert rows["torch"]["ok"] and rows["torch"]["needed"] and rows["transformers"]["ok"]
    assert {"sandbox: filesystem", "sandbox: network", "CPU memory", "disk here"} <= set(rows)
    assert all(r["ok"] or r["get_it"] for r in rows.values())


def test_doctor_fails_where_day0_cannot_run(capsys, monkeypatch):
    from day0.artifacts import provenance

    monkeypatch.setattr(provenance, "package_versions", lambda: {"triton": "3"})
    ran = day0(capsys, "doctor", "--json")
    rows = {r["what"]: r for r in ran.json}
    assert ran.code == 2 and not rows["torch"]["ok"] and rows["torch"]["get_it"] == "pip install torch"


def test_another_models_workspace_is_refused(line, capsys, tiny_repo):
    ran = day0(capsys, "decompose", tiny_repo("glm5_next"), "-w", "demo.day0")
    assert ran.code == 2 and "workspace of another model: demo" in ran.err


def test_record_writes_a_script_that_stands_alone(capsys, tmp_path):
    path = tmp_path / "record.py"
    assert day0(capsys, "record", path).out == f"{path}\n"
    assert "import day0" not in path.read_text() and "from day0" not in path.read_text()
    assert day0(capsys, "record").out == path.read_text()
    shown = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert shown.returncode == 0 and "MODULE:FUNCTION" in shown.stdout


@pytest.mark.parametrize("option", ["--junit", "--markdown", "GITHUB_STEP_SUMMARY"])
@pytest.mark.parametrize(
    ("path", "what"), [("missing/c.xml", "missing is no folder"), ("folder", "folder: it is a folder")]
)
def test_check_names_a_report_it_could_not_write_before_it_says_anything(
    aligned, capsys, tmp_path, monkeypatch, option, path, what
):
    aligned(row(1e-13))
    assert day0(capsys, "check", "--store").code == 0
    (tmp_path / "folder").mkdir()
    named = () if option.isupper() else (option, path)
    if option.isupper():
        monkeypatch.setenv(option, path)
    ran = day0(capsys, "check", "--json", *named)
    assert (ran.code, ran.out) == (2, "") and f"cannot write {path}" in ran.err and what in ran.err
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    "arguments", [("record", "missing/r.py"), ("check", "--store", "--baseline", "missing/b.json")]
)
def test_a_named_file_makes_no_folders(aligned, capsys, tmp_path, arguments):
    aligned(row(1e-13))
    ran = day0(capsys, *arguments, "--json")
    assert (ran.code, ran.out) == (2, "") and "missing is no folder" in ran.err
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("option", ["--junit", "--markdown", "GITHUB_STEP_SUMMARY"])
def test_check_prints_nothing_when_a_report_fails_to_be_written(aligned, capsys, monkeypatch, option):
    aligned(row(1e-13))
    assert day0(capsys, "check", "--store").code == 0
    named = () if option.isupper() else (option, "/dev/full")
    if option.isupper():
        monkeypatch.setenv(option, "/dev/full")
    ran = day0(capsys, "check", "--json", *named)
    assert (ran.code, ran.out) == (2, "") and "No space left on device" in ran.err and len(ran.err.splitlines()) == 2
