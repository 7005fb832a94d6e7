"""The stage: from a package folder to align.json, for right, wrong, reduced, dummy, recorded and streamed packages."""

import json
from dataclasses import replace

import pytest
import torch

from day0.align.self_check import check_reference
from day0.align.stage import Options, run
from day0.artifacts.alignment import Alignment
from day0.artifacts.inventory import Inventory, Reference, TensorAudit
from day0.artifacts.provenance import produced_by
from day0.errors import Day0Error
from day0.language.program import apply_recipe
from day0.language.recipe import load_recipe, write_recipe

from .packages import recipe_of, write_program

QUICK = Options(greedy_tokens=4, dtypes=(torch.float32,))


@pytest.fixture
def inventory(repo):
    return Inventory(
        produced_by=produced_by(model_hash=repo.hash),
        model="tiny",
        source=repo.source,
        model_hash=repo.hash,
        reference=Reference(kind="transformers"),
        config={},
        layers=4,
        schedule=(),
        parameters=1,
        weights_dtype="float32",
        operators=(),
        tensor_audit=TensorAudit(claimed=0),
    )


def align(repo, folder, inventory, options=QUICK):
    told = []
    alignment = run(repo, folder, inventory, options, produced_by(model_hash=repo.hash), tell=told.append)
    assert tuple(told) == alignment.gates
    return alignment


def verdicts(alignment):
    return {gate.name: gate.verdict for gate in alignment.gates}


def package_with(repo, path, *, layers=None, **wrong):
    """A package folder; `operator={attribute: value}` changes the recipe."""
    recipe = recipe_of(repo)
    operators = {name: {**attributes, **wrong.get(name, {})} for name, attributes in recipe.operators.items()}
    changed = recipe.model_copy(update={"operators": operators})
    return write_program(apply_recipe(changed, repo.config, repo.tensors, layers=layers), repo, path / "package")


def test_a_right_package_holds(repo, folder, inventory, tmp_path):
    alignment = align(repo, folder, inventory)
    assert verdicts(alignment) == dict.fromkeys(
        ("reference", "exactness", "precision float32", "greedy", "invariance"), "holds"
    )
    assert alignment.holds == "holds" and alignment.first_bad is None and alignment.conditions == ()
    assert [prompt.name for prompt in alignment.prompts[:2]] == ["code", "prose"]
    assert any("end id" in prompt.note for prompt in alignment.prompts)
    assert all(len(prompt.ids) % 2 for prompt in alignment.prompts if prompt.note != "text")
    assert alignment.rows_checked > len(alignment.rows) > 20
    assert Alignment.read(alignment.write(tmp_path).parent) == alignment


def test_a_wrong_package_does_not_hold_and_says_where(repo, inventory, tmp_path):
    alignment = align(repo, package_with(repo, tmp_path, delta_norm={"eps": 1e-3}), inventory)
    assert alignment.holds == "does not hold"
    assert (alignment.first_bad.layer, alignment.first_bad.operator) == (0, "delta_norm")
    found = verdicts(alignment)
    # a wrong eps says nothing about rounding, and nothing against the package's own consistency
    assert found["exactness"] == "does not hold" and found["precision float32"] == "inconclusive"
    assert found["invariance"] == "holds"
    assert "layer 0, delta_norm (norm)" in next(g.detail for g in alignment.gates if g.name == "exactness")
    failing = [row for row in alignment.rows if row.verdict != "holds"]
    assert ("delta_norm", 1) in {(row.operator, row.layer) for row in failing if row.mode == "isolated"}
    json.loads(alignment.dump(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_other_scores_are_told_and_unseen_ones_excluded(repo, folder, inventory, tmp_path, monkeypatch):
    alignment = align(repo, folder, inventory)
    compared = {(row.gate, row.port) for row in alignment.rows if row.port.startswith("scores")}
    assert {gate for gate, _ in compared} == {"exactness", "precision float32"}
    assert {port for _, port in compared} == {"scores of experts", "scores of groups"}
    assert not alignment.exclusions
    monkeypatch.setattr("day0.reference.trace._CHOOSING", {})
    blind = align(repo, folder, inventory)
    assert blind.holds == "holds" and "exactness of layers.1.experts scores of groups" in {
        exclusion.cell for exclusion in blind.exclusions
    }


def test_the_reference_is_checked_beside_the_ties_of_its_choices(repo, folder, inventory, monkeypatch):
    asked = []

    def asking(*arguments, tied=None, **options):
        asked.extend([tied()] if tied else [])
        return check_reference(*arguments, tied=tied, **options)

    monkeypatch.setattr("day0.align.stage.check_reference", asking)
    monkeypatch.setattr("day0.align.ties.LIMIT", 1e12)
    alignment = align(repo, folder, inventory)
    [rows] = asked
    prompt = next(prompt for prompt in alignment.prompts if prompt.note != "text")
    assert rows.tolist() == [True] * len(prompt.ids)


def edit_manifest(folder, **facts):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_reduced_layers_are_compared_with_as_many_and_said(repo, inventory, tmp_path):
    """And without an attention layer the reference's cache cannot tell its length: it is not checked, by name."""
    folder = package_with(repo, tmp_path, layers=2)
    edit_manifest(folder, whole=False, labels=["2 of 4 layers"])
    alignment = align(repo, folder, inventory)
    assert alignment.conditions == ("2 of 4 layers",)
    assert {row.layer for row in alignment.rows} == {None, 0, 1}
    found = verdicts(alignment)
    assert found.pop("reference") == alignment.holds == "inconclusive" and set(found.values()) == {"holds"}
    assert {e.cell for e in alignment.exclusions} == {
        f"reference {name}, {dtype}"
        for name in ("cached decode", "chunked prefill")
        for dtype in ("float64", "float32")
    }
    assert all("get_seq_length" in e.reason for e in alignment.exclusions)
    assert "get_seq_length" in next(gate.detail for gate in alignment.gates if gate.name == "reference")


def test_random_weights_decide_nothing(repo, inventory, tmp_path):
    folder = package_with(repo, tmp_path)
    edit_manifest(folder, dummy_weights=True, labels=["random weights"])
    alignment = align(repo, folder, inventory)
    assert alignment.holds == "inconclusive" and alignment.conditions == ("random weights",)
    assert verdicts(alignment) == {"exactness": "inconclusive", "greedy": "inconclusive", "invariance": "holds"}


def test_streamed(repo, folder, inventory, tmp_path):
    alignment = align(repo, folder, inventory, Options(stream=True))
    assert alignment.holds == "holds" and set(verdicts(alignment)) == {"exactness"}
    assert "one at a time" in alignment.conditions[0]
    wrong = align(repo, package_with(repo, tmp_path, kv_norm={"eps": 1e-3}), inventory, Options(stream=True))
    assert (wrong.holds, wrong.first_bad.layer, wrong.first_bad.operator) == ("does not hold", 3, "kv_norm")


def test_recorded(repo, folder, inventory, tmp_path):
    from day0.align.record import record
    from day0.reference.float64 import float64_arithmetic, loaded_in_float64

    model, path = loaded_in_float64(repo), tmp_path / "golden.safetensors"
    with float64_arithmetic():
        record(model, list(model.model.layers), [[3, 1, 4, 1, 5, 9, 2, 6, 5]], str(path), new=3)
    alignment = align(repo, folder, inventory, Options(golden=path))
    assert verdicts(alignment) == {"golden": "holds", "greedy": "holds", "invariance": "holds"}
    wrong = package_with(repo, tmp_path, kv_norm={"eps": 1e-3})
    against = align(repo, wrong, inventory, Options(golden=path))
    assert against.holds == "does not hold"
    [detail] = [gate.detail for gate in against.gates if gate.name == "golden"]
    assert detail.startswith("layer 3 (golden 0, isolated)") and "no operator is compared or named" in detail


def test_what_cannot_be_run_says_so(repo, folder, inventory, tmp_path):
    with pytest.raises(Day0Error, match="holds no package"):
        align(repo, tmp_path, inventory)
    beside = {"golden": Options(golden=tmp_path / "x"), "text": Options(texts=("a",)), "greedy-tokens": QUICK}
    for name, options in beside.items():
        with pytest.raises(Day0Error, match=f"--{name} and --stream do not go together"):
            align(repo, folder, inventory, replace(options, stream=True))
    with pytest.raises(Day0Error, match="dtypes and --stream do not go together"):
        align(repo, folder, inventory, Options(stream=True, dtypes=(torch.bfloat16,)))


@pytest.mark.parametrize("options", [Options(stream=True), QUICK])
def test_a_bound_for_what_leaks_is_a_condition(repo, inventory, tmp_path, options):
    folder = package_with(repo, tmp_path)
    edit_manifest(folder, dummy_weights=not options.stream)
    assert not any("float32" in condition for condition in align(repo, folder, inventory, options).conditions)
    recipe = load_recipe(str(folder / "recipe.yaml"))
    leaking = recipe.model_copy(update={"reference": recipe.reference.model_copy(update={"float64_leak": 3e-7})})
    (folder / "recipe.yaml").write_text(write_recipe(leaking))
    assert align(repo, folder, inventory, options).conditions[0].startswith("float64 held to 3e-07, not 1e-10")
