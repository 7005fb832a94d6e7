"""A generated package computes what the recipe says, and says so readably."""

import ast
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from day0.artifacts.base import Provenance
from day0.engine.package import load_package
from day0.engine.runner import Runner
from day0.errors import Day0Error
from day0.generate.render import render_model
from day0.generate.stage import Options, run
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.memory import Memory
from day0.language.program import apply_recipe
from day0.language.recipe import load_recipe
from day0.mapping import MapOptions, load_device
from day0.mapping.choose import Target, choose
from day0.repo import ModelRepo
from tests.generate import toy
from tests.mapping.inventories import operator

MADE_BY = Provenance(day0_version="0", model_hash="0")
IDS = torch.randint(0, toy.VOCAB, (37,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture
def repo(tmp_path):
    return ModelRepo.open(toy.write_repo(tmp_path / "toy"))


@pytest.fixture
def generate(tmp_path, repo):
    def call(**options):
        recipe = toy.write_recipe_file(tmp_path)
        audit = options.pop("audit", {})
        plan = toy.plan(options.pop("lines", ()))
        return run(repo, toy.inventory(recipe, **audit), plan, tmp_path / "ws", Options(**options), MADE_BY)

    return call


def test_the_package_computes_what_the_recipe_says(generate, repo):
    model = load_package(generate().folder, repo, dtype=torch.float64)
    runner = Runner(model, sequences=2, tokens=64, poison=True)
    owned = {n: t.double() for n, t in toy.tensors().items()}
    _, whole = runner.prefill(IDS)
    _, chunked = runner.prefill(IDS, chunks=[1, 2, 5, 3])
    # float64: a few hundred roundings of 1.1e-16 on values of size ~10
    assert (whole - toy.expected(IDS, owned)).abs().max() < 1e-12
    assert (chunked - whole).abs().max() < 1e-12


def test_only_rows_asked_for_go_through_the_output_table(generate, repo):
    model = load_package(generate().folder, repo, dtype=torch.float64)
    batch = Batch.pack([IDS[:20], IDS[20:]], context_lens=[0, 0], slots=[1, 2], pages=[[1], [2]])
    memory = Memory.allocate(model.layout(), pages=3, slots=3, dtype=torch.float64, device="cpu")
    whole = model(batch, memory)
    rows = torch.tensor([36, 19, 0])
    seen = []
    model.head.register_forward_hook(lambda _, inputs, output: seen.append(output.shape[0]))
    some = model(replace(batch, asked=rows), memory)
    # float64: a product of another height adds up in another order
    assert seen == [3] and (some - whole[rows]).abs().max() < 1e-12


def test_model_py_is_one_readable_file_that_imports_kernels_and_torch_only(generate):
    source = (generate().folder / "model.py").read_text()
    tree = ast.parse(source)
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert all(m.split(".")[0] in ("torch", "pathlib") or m.startswith("day0.kernels.") for m in modules)
    classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef)]
    assert classes == [
        "CausalConv", "Embedding", "Linear", "Norm", "ResidualMix", "Mixing", "Layer", "Wide", "Skip", "Model"
    ]  # fmt: skip
    assert "NORM_EPS = (1e-05, 1e-06, 1e-06)" in source
    assert 'self.norm = Norm(f"layers.{layer}.norm", dim=8, eps=NORM_EPS[layer])' in source
    assert '{"layer": Layer, "branch": Mixing},' in source
    assert "return self.down(x)" in source
    assert max(len(line) for line in source.splitlines()) <= 120


def test_layout_names_every_component(generate):
    layout = load_package(generate().folder, fill=False).layout()
    assert [c.name for c in layout.components] == ["layers.1.mixing.window"]
    assert layout.vocab_size == toy.VOCAB and layout.max_positions == 200
    assert layout.bytes_per_sequence(2) == toy.WIDTH * 2 * 2 and layout.bytes_per_token(2) == 0


def test_cut_and_dummy_packages_are_labelled(generate):
    made = generate(layers=1, dummy_weights=True)
    assert made.labels == ("random weights", "1 of 3 layers")
    assert json.loads((made.folder / "manifest.json").read_text())["labels"] == list(made.labels)
    assert "random weights, 1 of 3 layers" in (made.folder / "README.md").read_text()
    model = load_package(made.folder)
    _, first = Runner(model, sequences=1, tokens=64).prefill(IDS)
    _, again = Runner(load_package(made.folder), sequences=1, tokens=64).prefill(IDS)
    assert torch.isfinite(first).all() and torch.equal(first, again)


def test_a_cut_package_reads_only_its_own_layers(generate, repo):
    model = load_package(generate(layers=1).folder, repo, dtype=torch.float64)
    names = {n for n, _ in model.named_parameters()}
    assert any(n.startswith("layers.0.") for n in names) and not any(n.startswith("layers.1.") for n in names)


def test_weights_kept_in_float32_stay_so(generate, repo):
    model = load_package(generate().folder, repo, dtype=torch.bfloat16)
    by_name = {op.name: op for op in model.operators()}
    assert by_name["layers.0.norm"].weight.dtype == torch.float32
    assert by_name["layers.0.up"].weight.dtype == torch.bfloat16
    exact = load_package(generate(force=True).folder, repo, dtype=torch.float64)
    assert {p.dtype for p in exact.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("audit", "words", "hint"),
    [
        (dict(missing=("a.weight",)), "the checkpoint lacks a.weight", "get the checkpoint anew"),
        (dict(shape_mismatch=("a.weight is 3",)), "mis-shaped: a.weight", "get the checkpoint anew"),
        (dict(unclaimed=("a", "b", "c", "d")), "no operator claims a, b, c and 1 more", "claim them in the recipe"),
    ],
)
def test_broken_weight_maps_are_refused(generate, tmp_path, audit, words, hint):
    with pytest.raises(Day0Error, match=words) as caught:
        generate(audit=audit)
    assert hint in caught.value.hint
    assert not (tmp_path / "ws" / "package").exists()
    generate(audit=audit, dummy_weights=True)


def test_without_a_recipe_there_is_no_package(repo, tmp_path):
    inventory = toy.inventory().model_copy(update={"recipe": ""})
    with pytest.raises(Day0Error, match="no recipe covers toy") as caught:
        run(repo, inventory, toy.plan(), tmp_path / "ws", Options(), MADE_BY)
    assert f"`day0 decompose -w {tmp_path / 'ws'} --recipe FILE`" in caught.value.hint


def test_the_recipe_is_the_inventorys_and_unchanged(repo, tmp_path):
    path = toy.write_recipe_file(tmp_path)
    inventory = toy.inventory(path)
    path.write_text(toy.RECIPE.replace("doc: two products", "doc: two matrix products"))
    with pytest.raises(Day0Error, match="changed since the inventory was made") as caught:
        run(repo, inventory, toy.plan(), tmp_path / "ws", Options(), MADE_BY)
    assert "day0 decompose" in caught.value.hint and not (tmp_path / "ws").exists()
    path.write_text(toy.RECIPE + "# a comment changes nothing\n")
    run(repo, inventory, toy.plan(), tmp_path / "ws", Options(), MADE_BY)


def test_an_operator_that_nothing_computes_is_refused_by_name(generate, tmp_path):
    lines = choose(operator("odd", "", {}, status="new"), Target(load_device("cpu"), "float32", MapOptions()))
    with pytest.raises(Day0Error, match="nothing computes odd of toy: tier A cannot be run yet"):
        generate(lines=tuple(lines))
    assert not (tmp_path / "ws").exists()


def test_the_readme_opens_the_repo_from_any_folder(generate, repo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    repo.source = "toy"
    readme = (generate().folder / "README.md").read_text()
    assert f"ModelRepo.open({str(tmp_path / 'toy')!r})" in readme
    repo.source, repo.files.revision = "org/toy", "c0ffee"
    assert "ModelRepo.open('org/toy', revision='c0ffee')" in (generate(force=True).folder / "README.md").read_text()


def test_the_code_in_the_readme_runs_where_it_says(generate):
    folder = generate().folder
    readme = (folder / "README.md").read_text()
    assert "Run it from this folder" in readme
    code = readme.partition("```python\n")[2].partition("```")[0]
    for where, there in ((folder, code), (folder.parent, code.replace('"."', f'"{folder.name}"'))):
        ran = subprocess.run(
            [sys.executable, "-P", "-c", there], cwd=where, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        assert len(json.loads(ran.stdout)) == 16


@pytest.mark.parametrize("damage", ["model_hash", "whole", "files", "labels"])
def test_a_manifest_that_lacks_a_fact_is_damaged(generate, repo, damage):
    path = generate().folder / "manifest.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != damage}))
    with pytest.raises(Day0Error, match=f"manifest.json is damaged: {damage}: Field required"):
        load_package(path.parent, repo)


@pytest.mark.parametrize("content", [None, "", "lines: 3", "["])
def test_a_package_without_a_plan_is_an_error(generate, repo, content):
    path = generate().folder / "plan.yaml"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(Day0Error, match=r"plan\.yaml"):
        load_package(path.parent, repo)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model.layers.0.up.weight": None}, "layers.0.up.weight needs the checkpoint tensor model.layers.0.up.weight"),
        ({"head.weight": torch.zeros(3, 3)}, r"head.weight is \[32, 8\]: head.weight is \[3, 3\], needed is \[32, 8\]"),
        ({"model.layers.0.up.weight": torch.zeros(8, 16)}, r"layers.0.up.weight is \[8, 16\], needed is \[16, 8\]"),
        ({"model.extra": torch.zeros(2)}, "1 checkpoint tensors have no place in the package: model.extra"),
        ({"model.layers.0.norm.weight": torch.full((8,), float("nan"))}, "NaN or infinity: model.layers.0.norm.weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named_on_both_sides(generate, tmp_path, changed, words):
    folder = generate().folder
    other = ModelRepo.open(toy.write_repo(tmp_path / "other" / "toy", **changed))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "model_hash": other.hash}))
    with pytest.raises(Day0Error, match=words):
        load_package(folder, other)


def test_a_package_of_another_revision_is_refused(generate, tmp_path):
    folder = generate().folder
    other = ModelRepo.open(toy.write_repo(tmp_path / "other" / "toy", **{"head.weight": torch.zeros(3, 3)}))
    with pytest.raises(Day0Error, match="another revision"):
        load_package(folder, other)
    with pytest.raises(Day0Error, match="needs its checkpoint"):
        load_package(folder)


def test_the_plan_chooses_implementations_and_unknown_ones_are_refused(generate, repo):
    from day0.artifacts.plan import PlanLine

    def line(implementation):
        return PlanLine(
            operator="norm", kind="norm", phase="decode", implementation=implementation, fallback=True,
            dtype="float32", reason="-",
        )  # fmt: skip

    model = load_package(generate(lines=(line("torch"),)).folder, repo)
    assert {op.name: op.implementations for op in model.operators()}["layers.2.norm"] == {"decode": "torch"}
    broken = generate(lines=(line("absent"),), force=True).folder
    with pytest.raises(Day0Error, match="absent"):
        load_package(broken, repo)


def test_nothing_from_a_repo_becomes_code(generate, repo, tmp_path):
    """A config's strings, a folder's name and a recipe's words end up as data."""
    hostile = "__import__('os').abort()"
    recipe = toy.RECIPE.replace("positions: 200", "positions: $config.limit")
    (tmp_path / "limit.yaml").write_text(recipe)
    config = {**toy.CONFIG, "limit": hostile}
    with pytest.raises(Day0Error, match="expected a positive whole number"):
        apply_recipe(load_recipe(str(tmp_path / "limit.yaml")), config)
    words = 'a """ doc \\" ends\n' + hostile
    (tmp_path / "doc.yaml").write_text(toy.RECIPE.replace("doc: two products", f"doc: {json.dumps(words)}"))
    program = apply_recipe(load_recipe(str(tmp_path / "doc.yaml")), toy.CONFIG)
    source = render_model(program, title=words, recipe_hash="0" * 64, config_hash="0" * 64)
    calls = {n.func.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert "__import__" not in calls
    for name in ("x); abort(", "class", "import", "X"):
        (tmp_path / "name.yaml").write_text(toy.RECIPE.replace("  mixing: {kind", f"  {json.dumps(name)}: {{kind"))
        with pytest.raises(Day0Error, match="is no name"):
            load_recipe(str(tmp_path / "name.yaml"))


def test_a_value_without_source_is_refused(tmp_path):
    path = tmp_path / "eps.yaml"
    path.write_text(toy.RECIPE)
    program = apply_recipe(load_recipe(str(path)), {**toy.CONFIG, "eps": [float("inf")] * 3})
    with pytest.raises(Day0Error, match="inf cannot be written"):
        render_model(program, title="t", recipe_hash="0" * 64, config_hash="0" * 64)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "{", "[" * 5000])
def test_a_damaged_weight_map_is_an_error(generate, repo, content):
    folder = generate().folder
    (folder / "weights.json").write_text(content)
    with pytest.raises(Day0Error, match="weights.json is damaged"):
        load_package(folder, repo)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn])
def test_quantised_values_are_not_read_as_weights(generate, tmp_path, dtype):
    folder = generate().folder
    other = ModelRepo.open(toy.write_repo(tmp_path / "other" / "toy", **{"head.weight": torch.ones(32, 8).to(dtype)}))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "model_hash": other.hash}))
    with pytest.raises(Day0Error, match="head.weight is a float weight"):
        load_package(folder, other)


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "raise ValueError('x')", "import nothing_of_that_name"])
def test_a_package_that_does_not_load_says_so(generate, repo, end):
    folder = generate().folder
    with (folder / "model.py").open("a") as file:
        file.write(end + "\n")
    with pytest.raises(Day0Error, match="does not load"):
        load_package(folder, repo)
