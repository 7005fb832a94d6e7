"""What `day0 decompose` shows of a model without a recipe, and of operators that are contradicted."""

import pytest

from day0.artifacts.inventory import Evidence
from day0.cli.decompose import show
from day0.cli.output import Output
from tests.cli.run_day0 import day0
from tests.mapping.inventories import inventory, operator


@pytest.fixture
def without_recipe(tiny_repo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in ("day0.decompose.stage", "day0.pipeline.line"):
        monkeypatch.setattr(f"{module}.find_recipe", lambda config: None)
    return str(tiny_repo("qwen3_5"))


def test_without_a_recipe_the_verdict_is_inconclusive_and_every_tensor_is_shown(without_recipe, capsys):
    ran = day0(capsys, "decompose", without_recipe, "-w", "x.day0")
    assert ran.code == 3 and "decompose is inconclusive\n" in ran.out and "active per token" not in ran.out
    assert ran.err.count("no recipe") == 1 and "warning: decompose is inconclusive: no recipe covers" in ran.err
    (row,) = [line.split() for line in ran.out.splitlines() if "layers.*.linear_attn.out_proj.weight" in line]
    assert row[1:5] == ["128,", "256", "float32", "0-2"]
    assert day0(capsys, "status", "-w", "x.day0", "--json").json["stages"][0]["verdict"] == "inconclusive"


def test_a_plan_without_a_recipe_forecasts_the_weights_only(without_recipe, capsys):
    day0(capsys, "decompose", without_recipe, "-w", "x.day0")
    ran = day0(capsys, "map", "-w", "x.day0")
    assert ran.code == 0 and "memory: the weights fit; weights " in ran.out and "is not known\n" in ran.out
    assert "sequences that fit" not in ran.out and "yes" not in ran.out  # no fallback where nothing computes
    assert ran.err == "warning: no recipe says how the operators are joined: day0 cannot run it yet\n"


def test_verbose_shows_the_tensors_of_all_layers(without_recipe, capsys):
    ran = day0(capsys, "decompose", without_recipe, "-w", "x.day0", "-v")
    rows = [line.split()[0] for line in ran.out.splitlines() if line.strip().startswith("model.layers.")]
    assert {f"model.layers.{i}.linear_attn.out_proj.weight" for i in range(3)} <= set(rows)


def test_quiet_keeps_a_warning_a_fault(without_recipe, capsys):
    ran = day0(capsys, "decompose", without_recipe, "-w", "x.day0", "-q")
    assert ran.code == 3 and ran.out == "x.day0/inventory.json\n" and len(ran.err.splitlines()) <= 5


def test_a_contradicted_operator_is_shown_as_that(capsys):
    evidence = Evidence(
        established="contradicted", detail="", contradiction="n: eps is 1 in the recipe", wrong=("eps",)
    )
    held = operator("n", "norm", {"dim": 8, "eps": 1.0}).model_copy(update={"evidence": evidence})
    show(Output(), inventory([held], holds=False, faults=(evidence.contradiction,)), {})
    ran = capsys.readouterr()
    (row,) = [line.split() for line in ran.out.splitlines() if line.split()[:2] == ["n", "norm"]]
    assert row[-3:] == ["-", "contradicted", "(eps)"]
    assert "decompose does not hold: n: eps is 1 in the recipe" in ran.err


@pytest.mark.parametrize(("error", "shown"), [(0.0, "proved (0e+00)"), (None, "proved")])
def test_only_what_is_proved_has_an_error(capsys, error, shown):
    for established, said in (("proved", shown), ("declared", "declared")):
        evidence = Evidence(established=established, detail="", error=error)
        held = operator("n", "norm", {"dim": 8, "eps": 1.0}).model_copy(update={"evidence": evidence})
        show(Output(), inventory([held]), {})
        assert f"{said}\n" in capsys.readouterr().out
