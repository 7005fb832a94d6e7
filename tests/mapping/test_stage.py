import dataclasses
import json

import pytest
import yaml

from day0.artifacts.inventory import Fusion
from day0.artifacts.layout import Component
from day0.artifacts.plan import Plan
from day0.demo import model_path
from day0.errors import Day0Error
from day0.kernels.registry import get_kind, kind_names
from day0.mapping import MapOptions, load_device, run
from day0.mapping import choose as choosing
from day0.mapping.tier import tier_of
from tests.mapping.inventories import PRODUCED_BY, inventory, inventory_of_config, operator

LINEAR = {"in_features": 48, "out_features": 80}
STATE = (Component(name="state", role="per_sequence", shape=(8,), rollback="restore"),)


def plan(held, device="h200", **options):
    return run(held, load_device(device), MapOptions(**options), PRODUCED_BY)


@pytest.fixture(scope="module")
def demo():
    return inventory_of_config(json.loads((model_path() / "config.json").read_text()))


def test_every_operator_has_a_line_in_every_phase(demo):
    lines = plan(demo).lines
    assert [(line.operator, line.phase) for line in lines] == [
        (o.name, phase) for o in demo.operators for phase in ("prefill", "decode", "verify")
    ]
    assert all(line.reason for line in lines)


def test_the_plan_survives_its_file(demo, tmp_path):
    made = plan(demo)
    made.write(tmp_path)
    assert Plan.read(tmp_path) == made
    text = (tmp_path / "plan.yaml").read_text()
    assert yaml.safe_load(text)["device"]["peak_flops_per_s"]["bfloat16"]["source"].startswith("https://")


@pytest.mark.parametrize(
    ("checkpoint", "device", "asked", "dtype", "warned"),
    [
        ("bfloat16", "h200", None, "bfloat16", False),
        ("BF16", "h200", None, "bfloat16", False),
        ("torch.float16", "h200", None, "float16", False),
        ("bfloat16", "cpu", None, "float32", True),
        ("F8_E4M3", "h200", None, "bfloat16", True),
        ("F8_E4M3", "cpu", None, "float32", True),
        ("bfloat16", "cpu", "float64", "float64", False),
        ("float32", "h200", "bfloat16", "bfloat16", False),
    ],
)
def test_dtype(checkpoint, device, asked, dtype, warned):
    made = plan(inventory([operator("l", "linear", LINEAR)], dtype=checkpoint), device, dtype=asked)
    assert made.dtype == dtype and {line.dtype for line in made.lines} == {dtype}
    assert any("the checkpoint is in" in warning for warning in made.warnings) == warned


def test_a_dtype_that_the_device_has_not_is_refused():
    with pytest.raises(Day0Error, match="no bfloat16 rate"):
        plan(inventory([operator("l", "linear", LINEAR)]), "cpu", dtype="bfloat16")


def test_fallbacks_are_warned_of_by_name(monkeypatch):
    kinds = {k: dataclasses.replace(get_kind(k), implementations=get_kind(k).implementations[:1]) for k in kind_names()}
    monkeypatch.setattr(choosing, "get_kind", kinds.__getitem__)
    known = [operator("one", "linear", LINEAR), operator("two", "norm", {"dim": 8, "eps": 1e-6})]
    words = "no fused kernel for this kind yet; the PyTorch reference stands in"
    assert f"all 2 operators: {words}" in plan(inventory(known)).warnings
    warnings = plan(inventory([*known, operator("odd", "Odd", {}, status="new")])).warnings
    assert f"one, two: {words}" in warnings
    assert "odd: module Odd: no recipe says which kind it is: day0 cannot run it yet" in warnings


def test_a_model_that_does_not_fit_is_warned_of():
    big = operator("l", "linear", {"in_features": 300_000, "out_features": 300_000})
    assert any("does not fit on NVIDIA H200" in w and "180 GB" in w for w in plan(inventory([big])).warnings)


def test_without_a_recipe_the_plan_tells_no_more_than_is_known():
    modules = [operator(f"m{i}", name, {}, status="new", parameters=1000) for i, name in enumerate(("Linear", "norm"))]
    made = plan(inventory(modules, recipe=""), "cpu")
    assert (
        made.tier == "C" and made.warnings[-1] == made.tier_reason and len(made.warnings) == 2
    )  # the other: the dtype
    assert made.memory.fits is None and made.memory.weights_bytes == 8000
    assert not any(line.fallback for line in made.lines)


def test_what_does_not_fit_is_named(monkeypatch):
    """Weights that fit, beside which no sequence does."""
    held = operator("l", "linear", {"in_features": 200_000, "out_features": 300_000}, state=STATE)
    (said,) = [w for w in plan(inventory([held]), "h200").warnings if "does not fit" in w]
    assert "weights of 120 GB in bfloat16 and a workspace of 16.4 GB are more than" in said


def test_fusion_candidates_become_groups_without_a_kernel():
    pair = Fusion(operators=("one", "two"), reason="saves a pass over memory")
    made = plan(inventory([operator("one", "linear", LINEAR)], fusions=(pair,)))
    assert [(g.operators, g.implementation, g.reason) for g in made.fusion_groups] == [
        (("one", "two"), "", "saves a pass over memory")
    ]


def test_switches_stand_in_the_plan(monkeypatch):
    declared = dataclasses.replace(choosing.get_kind("linear"), switch=lambda a: f"context <= {a.in_features}")
    monkeypatch.setattr(choosing, "get_kind", lambda name: declared)
    (switch,) = plan(inventory([operator("one", "linear", LINEAR)])).switches
    assert (switch.operator, switch.dense_while) == ("one", "context <= 48")


def lines_for(*pairs):
    """Plan lines from (operator, implementation) pairs."""
    return [
        line.model_copy(update={"implementation": implementation, "fallback": implementation == "torch"})
        for o, implementation in pairs
        for line in choosing.choose(o, choosing.Target(load_device("h200"), "bfloat16", MapOptions()))
    ]


def test_tiers():
    plain, stateful = operator("plain", "linear", LINEAR), operator("held", "linear", LINEAR, state=STATE)
    new, new_stateful = operator("odd", "", {}, status="new"), operator("odder", "", {}, status="new", state=STATE)

    def tier(*pairs, recipe="r"):
        return tier_of([o for o, _ in pairs], lines_for(*pairs), recipe=recipe)

    assert tier((plain, "torch"), (stateful, "fused"))[0] == "A"
    letter, reason = tier((plain, "fused"), (stateful, "torch"))
    assert letter == "B" and "held hold state and run on the PyTorch reference" in reason
    letter, reason = tier((stateful, "fused"), (new, "none"), (new_stateful, "none"))
    assert letter == "B" and reason == "no implementation computes odd, odder: day0 cannot run it yet"
    letter, reason = tier((plain, "fused"), recipe="")
    assert letter == "C" and reason.endswith("day0 cannot run it yet")


def test_a_tier_needs_its_kernel_in_every_phase():
    held = operator("held", "linear", LINEAR, state=STATE)
    lines = lines_for((held, "fused"))
    assert tier_of([held], lines, recipe="r")[0] == "A"
    lines[1] = lines[1].model_copy(update={"implementation": "torch", "fallback": True})
    assert tier_of([held], lines, recipe="r")[0] == "B"


def test_long_lists_of_names_are_cut():
    many = [operator(f"o{i}", "", {}, status="new") for i in range(9)]
    reason = tier_of(many, lines_for(*((o, "none") for o in many)), recipe="r")[1]
    assert "o5 and 3 more" in reason and "o6" not in reason


def test_the_full_size_model_is_forecast_on_an_h200(root):
    """Its own config class spreads the hub's file over the keys that the recipe reads."""
    from transformers import AutoConfig

    folder = root / "tests/data/glm-5.3-flash"
    config = AutoConfig.from_pretrained(folder).to_dict()
    memory = plan(inventory_of_config(config)).memory
    parameters = json.loads((folder / "expected.json").read_text())["text_parameters"]
    assert memory.weights_bytes == pytest.approx(2 * parameters, rel=0.001)
    assert not memory.fits and memory.sequences_at["4K"] == 0
    # Eleven indexed layers: a latent of 512 channels, and an index key of 128 for every four tokens.
    assert memory.kv_bytes_per_token == 11 * 2 * (512 + 128 / 4)
    # 34 linear layers: a 128 x 128 matrix per head in float32, three past inputs of q, k and v; and the indexed layers'
    # unfinished pools, keys and their scores.
    linear = 64 * 128 * 128 * 4 + 3 * (3 * 64 * 128) * 2
    assert memory.state_bytes_per_sequence == 34 * linear + 11 * 2 * (4 * 128) * 2
