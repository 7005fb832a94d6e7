"""day0 decompose as a stage: the inventory of small and of full-size models, audits, foreign code, differences."""

import json
import shutil
import subprocess
import sys

import pytest
import transformers
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from day0.artifacts.base import Provenance
from day0.artifacts.inventory import Inventory
from day0.decompose import Options, diff, run
from day0.decompose.config_audit import audit_config
from day0.decompose.look import ReferenceConfig, Seen
from day0.demo import model_path
from day0.errors import Day0Error
from day0.language.program import apply_recipe
from day0.language.recipe import find_recipe, read_recipe, write_recipe
from day0.repo import ModelRepo
from day0.repo.reference_source import find_reference_source
from tests.decompose.headers import header_repo
from tests.decompose.remote_repo import write_remote_repo

PRODUCED_BY = Provenance(day0_version="0", model_hash="0")


def decompose(folder, **options):
    return run(ModelRepo.open(folder), Options(**options), PRODUCED_BY)


def copy_repo(source, target, **config):
    """A repo whose text config is changed."""
    shutil.copytree(source, target)
    path = target / "config.json"
    data = json.loads(path.read_text())
    data.get("text_config", data).update(config)
    path.write_text(json.dumps(data))
    return target


@pytest.fixture(scope="module")
def glm(tiny_repo):
    return decompose(tiny_repo("glm5_next"))


def test_the_demo_model_is_proved(tmp_path):
    inventory = decompose(model_path(), require="proved")
    assert inventory.holds
    assert {o.evidence.established for o in inventory.operators} == {"proved"}
    assert {"recurrence", "index_select", "sparse_attention", "residual_mix", "moe"} <= {
        o.kind for o in inventory.operators
    }
    inventory.write(tmp_path)
    assert Inventory.read(tmp_path) == inventory


def test_operators(glm):
    operators = {o.name: o for o in glm.operators}
    delta = operators["delta"]
    assert delta.layers == (0, 1, 2) and delta.status == "reuse" and delta.refusals == ()
    assert [c.name for c in delta.state] == ["state"]
    assert delta.after == ("qkv_conv", "decay_up", "beta_proj")
    assert delta.inputs == ("q", "k", "v", "decay", "beta") and delta.outputs == ("o",)
    mlp = operators["dense_mlp"]
    assert mlp.parameters == 3 * 192 * 128
    assert mlp.weights[0].tensors == (
        "model.language_model.layers.0.mlp.gate_proj.weight",
        "model.language_model.layers.0.mlp.up_proj.weight",
    )
    assert mlp.weights[0].transform == "concat of 2"
    # Two FLOPs per weight and token, over 4096 and over one.
    assert mlp.prefill.flops == pytest.approx(2 * mlp.parameters * 4096, rel=0.05)
    assert mlp.decode.flops == pytest.approx(mlp.prefill.flops / 4096, rel=0.01)
    assert glm.work == {
        "prefill": dict(tokens=4096, sequences=1, context=0),
        "decode": dict(tokens=1, sequences=1, context=4096),
    }
    assert ("delta", "delta_norm") in {f.operators for f in glm.fusions}


def test_summary(glm):
    assert glm.schedule == ("kda + dense_mlp", *["kda + experts"] * 2, "indexed_latent_attention + experts")
    assert glm.reference.class_name == "Glm5NextForConditionalGeneration" and len(glm.reference.hash) == 64
    assert glm.reference.revision == transformers.__version__
    idle = 3 * 6 * 3 * 64 * 128  # in 3 layers 6 of 8 experts, of 3 matrices each, are not read for a token
    embedding = 259 * 128  # nor are all rows of the embedding but one
    assert glm.parameters_active == sum(o.parameters for o in glm.operators) - idle - embedding
    assert glm.weights_dtype == "float32" and glm.recipe == "glm5_next"


def test_every_config_key_has_an_answer(glm, tiny_repo):
    raw = json.loads((tiny_repo("glm5_next") / "config.json").read_text())
    audited = {k.key: k for k in glm.config_audit}
    assert {k for k in raw if k != "text_config"} <= set(audited)
    assert {f"text_config.{k}" for k in raw["text_config"]} <= set(audited)
    assert audited["text_config.hidden_size"].read_by == ("recipe", "reference")
    assert audited["text_config.qk_head_dim"].detail == "the sum of its two parts"
    assert audited["text_config.use_cache"].detail == "the engine decides"
    assert all(k.read_by or k.detail for k in glm.config_audit)


def test_a_key_that_nothing_reads_is_told(tiny_repo):
    repo = ModelRepo.open(tiny_repo("qwen3_5"))
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    reference = ReferenceConfig(text=dict(program.config), text_reads=frozenset(program.config))
    keys, warnings = audit_config({**repo.config, "stray": 3}, program, reference=reference)
    (stray,) = [k for k in keys if k.key == "stray"]
    assert (stray.audit, stray.detail) == ("ignored", "the reference never reads it")
    assert "config key stray is ignored: the reference never reads it" in warnings


def test_every_tensor_has_an_answer(glm, tiny_repo):
    audit = glm.tensor_audit
    whole = ModelRepo.open(tiny_repo("glm5_next")).tensors
    assert audit.claimed + audit.left_out_count == len(whole)
    assert (audit.unclaimed, audit.missing, audit.shape_mismatch) == ((), (), ())
    assert "model.visual.*" in audit.left_out


def test_a_config_that_the_tensors_contradict(tiny_repo, tmp_path):
    changed = copy_repo(tiny_repo("qwen3_5"), tmp_path / "repo", intermediate_size=200)
    inventory = decompose(changed)
    assert not inventory.holds
    assert any("up_proj" in text or "gate_proj" in text for text in inventory.tensor_audit.shape_mismatch)
    (key,) = [k for k in inventory.config_audit if k.audit == "contradicted"]
    assert key.key == "intermediate_size" and "192" in key.detail


def test_a_key_of_the_same_number_is_not_accused(tiny_repo, tmp_path):
    """The shape of no weight that differs follows from the head dimension, though it is the number expected there."""
    tiny = tiny_repo("qwen3_5")
    head_dim = json.loads((tiny / "config.json").read_text())["head_dim"]
    assert head_dim != 192
    inventory = decompose(copy_repo(tiny, tmp_path / "repo", intermediate_size=head_dim))
    assert inventory.tensor_audit.shape_mismatch
    assert {k.key for k in inventory.config_audit if k.audit == "contradicted"} == {"intermediate_size"}


def test_words_and_lists_that_the_reference_reads_otherwise(tiny_repo):
    repo = ModelRepo.open(tiny_repo("glm5_next"))
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    text = program.config
    types = ["deepseek_sparse_attention" if t == "indexed_attention" else t for t in text["layer_types"]]
    assert types != text["layer_types"] and {"hidden_act", "layer_types"} <= set(program.reads)

    def contradicted(**changed):
        keys, _ = audit_config(repo.config, program, reference=ReferenceConfig(text=text | changed))
        return [k.key.removeprefix("text_config.") for k in keys if k.audit == "contradicted"]

    assert contradicted() == contradicted(layer_types=tuple(types)) == []
    assert contradicted(hidden_act="gelu") == ["hidden_act"]
    assert contradicted(layer_types=types[::-1]) == ["layer_types"]


@pytest.mark.parametrize("leak", [-1e-9, 1.1e-6, 1.0, float("nan"), float("inf")])
def test_a_recipe_cannot_set_its_own_tolerance(tmp_path, leak):
    recipe = find_recipe(ModelRepo.open(model_path()).config)
    text = write_recipe(recipe.model_copy(update={"reference": recipe.reference.model_copy(update={"fails": {}})}))
    data = yaml.safe_load(text) | {"reference": {"float64_leak": leak}}
    with pytest.raises(Day0Error, match="float64_leak"):
        read_recipe(yaml.safe_dump(data), name="leaking")


def test_a_leak_is_told(tiny_repo, tmp_path):
    repo = tiny_repo("qwen3_5")
    data = yaml.safe_load(write_recipe(find_recipe(ModelRepo.open(repo).config)))
    data["reference"] = {**data.get("reference", {}), "float64_leak": 1e-6}
    (tmp_path / "leaking.yaml").write_text(yaml.safe_dump(data))
    told = [w for w in decompose(repo, recipe=str(tmp_path / "leaking.yaml")).warnings if "1.0e-06" in w]
    assert len(told) == 1 and "count as equal" in told[0]


def test_lost_and_foreign_tensors(tiny_repo, tmp_path):
    changed = copy_repo(tiny_repo("qwen3_5"), tmp_path / "repo")
    tensors = load_file(changed / "model.safetensors")
    tensors["stranger"] = tensors.pop("model.norm.weight")
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    inventory = decompose(changed)
    audit = inventory.tensor_audit
    assert audit.unclaimed == ("stranger",) and audit.missing == ("model.norm.weight",)
    assert inventory.faults == (
        "tensors missing from the checkpoint: model.norm.weight",
        "tensors in no operator: stranger",
    )


def test_behaviour_beats_the_recipe(tiny_repo, tmp_path):
    repo = tiny_repo("qwen3_5")
    recipe = find_recipe(ModelRepo.open(repo).config)
    wrong = recipe.model_copy(update={"operators": {**recipe.operators}})
    wrong.operators["delta"] = {**recipe.operators["delta"], "qk_norm_eps": 0.01}
    (tmp_path / "wrong.yaml").write_text(write_recipe(wrong))
    inventory = decompose(repo, recipe=str(tmp_path / "wrong.yaml"))
    assert not inventory.holds
    (contradiction,) = [o.evidence.contradiction for o in inventory.operators if o.evidence.contradiction]
    assert contradiction.startswith("layers.0.delta: qk_norm_eps is 0.01 in the recipe")
    assert contradiction in inventory.warnings and inventory.faults == (contradiction,)
    assert inventory.verdict == "does not hold" and inventory.reasons == (contradiction,)
    delta = next(o for o in inventory.operators if o.name == "delta").evidence
    assert (delta.established, delta.wrong, delta.error) == ("contradicted", ("qk_norm_eps",), None)
    assert all(o.evidence.error is None for o in inventory.operators if o.evidence.established == "declared")
    trusted = decompose(repo, recipe=str(tmp_path / "wrong.yaml"), trust_recipe=True)
    assert trusted.holds and trusted.faults == ()
    changes = diff(decompose(repo), inventory)
    assert [(c.what, c.name, c.before, c.after) for c in changes] == [("attribute", "delta.qk_norm_eps", 1e-6, 0.01)]


@pytest.mark.parametrize(("name", "layers"), [("glm-5.3-flash", 45), ("qwen4-exp", 48)])
def test_full_size(root, tmp_path, name, layers):
    """Headers only; the limits are those of a quiet machine with 2 cores, so processor time is what counts."""
    data = root / "tests" / "data" / name
    repo = header_repo(data)
    program = (
        "import resource, sys, time; from pathlib import Path; from day0.artifacts.base import Provenance;"
        "from day0.decompose import Options, run; from day0.repo import ModelRepo; start = time.process_time();"
        "run(ModelRepo.open(Path(sys.argv[1]), headers_only=True), Options(),"
        "Provenance(day0_version='0', model_hash='0')).write(Path(sys.argv[2]));"
        "print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, repo, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    seconds, kilobytes = map(float, done.stdout.split())
    assert seconds < 15 and kilobytes < 2e6
    inventory = Inventory.read(tmp_path)
    expected = json.loads((data / "expected.json").read_text())
    assert inventory.parameters == expected["text_parameters"]
    assert inventory.layers == layers == len(inventory.schedule)
    assert inventory.holds and {o.evidence.established for o in inventory.operators} == {"proved"}
    audit = inventory.tensor_audit
    assert audit.claimed > 30_000 and (audit.unclaimed, audit.missing, audit.shape_mismatch) == ((), (), ())


def test_a_model_without_recipe(tiny_repo, tmp_path, monkeypatch):
    monkeypatch.setattr("day0.decompose.stage.find_recipe", lambda config: None)
    inventory = decompose(tiny_repo("qwen3_5"))
    assert not inventory.holds and (inventory.verdict, inventory.faults) == ("inconclusive", ())
    assert inventory.undecided == inventory.reasons and "no recipe" in inventory.reasons[0]
    assert inventory.recipe == "" and inventory.parameters_active is None
    assert {(o.status, o.evidence.established) for o in inventory.operators} == {("new", "inferred")}
    projection = next(o for o in inventory.operators if o.name.endswith("linear_attn.out_proj"))
    assert projection.kind == "Linear" and projection.layers == (0, 1, 2)
    assert projection.inputs == ("in[0] [1, 77, 256]",) and projection.outputs == ("out [1, 77, 128]",)
    assert sum(o.parameters for o in inventory.operators) == inventory.parameters
    assert any("chunk_gated_delta_rule" in warning for warning in inventory.warnings)
    asked = decompose(tiny_repo("qwen3_5"), require="proved")
    (fault,) = asked.faults
    assert asked.verdict == "does not hold" and asked.reasons == asked.faults
    first = ", ".join(o.name for o in inventory.operators[:5])
    assert fault.startswith(f"operators not proved: {first} and ")


def test_without_a_recipe_a_tensor_belongs_to_the_module_that_its_name_says(tiny_repo, monkeypatch):
    monkeypatch.setattr("day0.decompose.stage.find_recipe", lambda config: None)
    repo = ModelRepo.open(tiny_repo("qwen3_5"))
    inventory = decompose(tiny_repo("qwen3_5"))
    audit = inventory.tensor_audit
    assert audit.claimed == len(repo.tensors) and audit.unclaimed == ()
    assert not any("tensor" in warning for warning in inventory.warnings)
    assert sum(group.count for group in inventory.tensors) == len(repo.tensors)
    (group,) = [g for g in inventory.tensors if g.name == "model.layers.*.linear_attn.out_proj.weight"]
    assert (group.shape, group.dtype, group.layers, group.count) == ((128, 256), "float32", (0, 1, 2), 3)
    assert group.operator in {o.name for o in inventory.operators}


def test_tensors_that_the_reference_renames_are_named_in_one_warning(tiny_repo, monkeypatch):
    monkeypatch.setattr("day0.decompose.stage.find_recipe", lambda config: None)
    inventory = decompose(tiny_repo("olmo_hybrid"))
    audit = inventory.tensor_audit
    renamed = ("model.layers.0.attention_layer_norm.weight", "model.layers.0.feedforward_layer_norm.weight")
    assert audit.unclaimed[:2] == renamed and len(audit.unclaimed) == 7
    said = [w for w in inventory.warnings if w.startswith("tensors in no operator: ")]
    assert len(said) == 1 and said[0].endswith("and 2 more") and inventory.verdict == "inconclusive"
    unowned = [g for g in inventory.tensors if not g.operator]
    assert sum(g.count for g in unowned) == 7 and {g.name for g in unowned} == {
        "model.layers.*.attention_layer_norm.weight",
        "model.layers.*.feedforward_layer_norm.weight",
    }
    norm = next(o for o in inventory.operators if o.name == "model.layers.*.input_layernorm")
    assert norm.weights[0].tensors == () and norm.layers == (0, 1, 2)


def test_keys_of_which_the_same_is_said_share_a_warning(tiny_repo):
    repo = ModelRepo.open(tiny_repo("qwen3_5"))
    program = apply_recipe(find_recipe(repo.config), repo.config, repo.tensors)
    reference = ReferenceConfig(text=dict(program.config), text_reads=frozenset(program.config))
    _, warnings = audit_config({**repo.config, "stray": 3, "other": 4}, program, reference=reference)
    assert "config keys stray, other are ignored: the reference never reads them" in warnings


def test_a_full_disk_does_not_pass_for_a_model_that_cannot_be_watched(tiny_repo, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", full)
    with pytest.raises(OSError, match="cannot write the shrunk model in .*: No space left on device"):
        decompose(tiny_repo("kimi_linear"))


@pytest.mark.parametrize("require", [None, "proved"])
def test_a_repo_of_which_nothing_is_known_is_refused(tmp_path, require):
    (tmp_path / "config.json").write_text('{"model_type": "foo", "hidden_size": 8}')
    with pytest.raises(Day0Error, match="model type 'foo' is unknown") as caught:
        decompose(tmp_path, require=require)
    assert caught.value.exit_code == 2
    assert "install a transformers" in caught.value.hint and "--recipe FILE" in caught.value.hint


def test_a_config_without_a_model_type_says_so(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": null, "hidden_size": 8}')
    with pytest.raises(Day0Error, match="the model's type is unknown.*config.json names no model_type") as caught:
        decompose(tmp_path)
    assert "None" not in caught.value.message


def test_code_that_is_not_trusted_is_refused_where_no_recipe_covers_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr("day0.decompose.stage.find_recipe", lambda config: None)
    repo = write_remote_repo(tmp_path / "repo")
    source = find_reference_source(ModelRepo.open(repo))
    with pytest.raises(Day0Error, match=source.revision_hash) as caught:
        decompose(repo)
    assert "--trust-remote-code" in caught.value.hint and source.module_files[0][0] in caught.value.message


@pytest.mark.parametrize("options", [{}, {"require": "proved"}, {"trust_recipe": True}])
def test_no_operators_hold_nothing(tiny_repo, monkeypatch, options):
    """A transformers model of which neither a structure nor a class could be read."""
    monkeypatch.setattr("day0.decompose.stage.find_recipe", lambda config: None)
    monkeypatch.setattr("day0.decompose.stage.look", lambda *a, **k: Seen())
    monkeypatch.setattr("day0.decompose.stage.read_source", lambda *a: [])
    inventory = decompose(tiny_repo("qwen3_5"), **options)
    assert inventory.operators == () and not inventory.holds and "no operator was found" in inventory.faults


def test_code_of_the_repo(tmp_path):
    repo = write_remote_repo(tmp_path / "repo")
    refused = decompose(repo)
    assert {o.evidence.established for o in refused.operators} == {"declared"}
    assert any("--trust-remote-code" in warning for warning in refused.warnings)
    trusted = decompose(repo, trust="sandboxed")
    assert {o.evidence.established for o in trusted.operators} == {"proved"}
    assert "remote_for_tests" not in sys.modules and not any("attention_residuals" in m for m in sys.modules)
    assert trusted.parameters == sum(o.parameters for o in trusted.operators)
