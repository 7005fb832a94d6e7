import subprocess
import sys
from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.repo import ModelRepo, reference_source
from day0.repo.reference_source import find_reference_source, read_module, transformers_root
from tests.repo.safetensors_files import write_config

AUTO_MAP = {"AutoConfig": "configuration_toy.ToyConfig", "AutoModelForCausalLM": "modeling_toy.ToyForCausalLM"}


def test_the_mappings_read_from_source_are_the_imported_ones() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, SPECIAL_MODEL_TYPE_TO_MODULE_NAME
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    root = transformers_root()
    assert root is not None
    assert reference_source._mappings(root) == {
        "CONFIG_MAPPING_NAMES": dict(CONFIG_MAPPING_NAMES),
        "SPECIAL_MODEL_TYPE_TO_MODULE_NAME": dict(SPECIAL_MODEL_TYPE_TO_MODULE_NAME),
        "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    }


def test_nothing_is_imported(tmp_path: Path) -> None:
    write_config(tmp_path, {"model_type": "glm5_next"})
    script = (
        "import sys\nfrom day0.repo import ModelRepo\nfrom day0.repo.reference_source import find_reference_source\n"
        "print(find_reference_source(ModelRepo.open(sys.argv[1])).kind)\n"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["transformers", "[]"], done.stderr


@pytest.mark.parametrize(
    ("config", "module", "class_name"),
    [
        (
            {"model_type": "glm5_next", "architectures": ["Glm5NextForConditionalGeneration"]},
            "glm5_next",
            "Glm5NextForConditionalGeneration",
        ),
        ({"model_type": "kimi_linear"}, "kimi_linear", "KimiLinearForCausalLM"),
        ({"model_type": "kimi_linear", "architectures": ["Renamed"]}, "kimi_linear", "KimiLinearForCausalLM"),
        ({"model_type": "qwen3_5_text"}, "qwen3_5", "Qwen3_5ForCausalLM"),
    ],
)
def test_model_types_that_transformers_knows(tmp_path: Path, config: dict, module: str, class_name: str) -> None:
    repo = ModelRepo.open(write_config(tmp_path, config | {"auto_map": AUTO_MAP}))
    source = find_reference_source(repo)
    assert (source.kind, source.model_type, source.class_name) == ("transformers", config["model_type"], class_name)
    paths = [path for path, _ in source.module_files]
    assert f"models/{module}/modeling_{module}.py" in paths
    assert f"models/{module}/configuration_{module}.py" in paths
    assert "class " in read_module(source, repo, paths[-1])
    assert len(source.revision_hash) == 64


def test_the_hash_follows_source_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = tmp_path / "transformers" / "models" / "auto"
    auto.mkdir(parents=True)
    (auto / "configuration_auto.py").write_text('CONFIG_MAPPING_NAMES = OrderedDict([("toy", "ToyConfig")])')
    modeling = tmp_path / "transformers" / "models" / "toy" / "modeling_toy.py"
    modeling.parent.mkdir()
    modeling.write_text("class ToyModel: ...")
    monkeypatch.setattr(reference_source, "transformers_root", lambda: tmp_path / "transformers")
    repo = ModelRepo.open(write_config(tmp_path / "repo", {"model_type": "toy", "architectures": ["ToyModel"]}))
    first = find_reference_source(repo)
    assert (first.kind, first.class_name) == ("transformers", "ToyModel")
    assert find_reference_source(repo) == first
    modeling.write_text("class ToyModel: pass")
    second = find_reference_source(repo)
    monkeypatch.setattr(reference_source, "_version", lambda: "0.0.0")
    third = find_reference_source(repo)
    assert len({first.revision_hash, second.revision_hash, third.revision_hash}) == 3
    modeling.unlink()
    modeling.parent.rmdir()
    with pytest.raises(Day0Error, match="lists 'toy' but has no folder models/toy"):
        find_reference_source(repo)


def test_code_of_the_repo(tmp_path: Path) -> None:
    write_config(tmp_path, {"model_type": "toy_new", "auto_map": AUTO_MAP, "architectures": ["ToyForCausalLM"]})
    (tmp_path / "configuration_toy.py").write_text("raise SystemExit('imported')")
    (tmp_path / "modeling_toy.py").write_text("raise SystemExit('imported')")
    repo = ModelRepo.open(tmp_path)
    source = find_reference_source(repo)
    assert (source.kind, source.class_name) == ("remote_code", "modeling_toy.ToyForCausalLM")
    assert source.architecture == "ToyForCausalLM"
    assert [path for path, _ in source.module_files] == ["configuration_toy.py", "modeling_toy.py"]
    assert "imported" in read_module(source, repo, "modeling_toy.py")
    with pytest.raises(Day0Error, match="no source file of the reference"):
        read_module(source, repo, "config.json")
    (tmp_path / "modeling_toy.py").write_text("x = 1")
    assert find_reference_source(ModelRepo.open(tmp_path)).revision_hash != source.revision_hash


@pytest.mark.parametrize(
    ("auto_map", "reason"),
    [
        ({}, "lacks 'toy_new', and the repo brings no code of its own"),
        (AUTO_MAP, "auto_map names is missing from the repo"),
        ({"AutoModel": "other/repo--modeling.Toy"}, "lies in another repo (other/repo--modeling.Toy)"),
    ],
)
def test_no_reference(tmp_path: Path, auto_map: dict, reason: str) -> None:
    source = find_reference_source(
        ModelRepo.open(write_config(tmp_path, {"model_type": "toy_new", "auto_map": auto_map}))
    )
    assert (source.kind, source.module_files, source.revision_hash) == ("none", (), "")
    assert reason in source.reason


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_source, "transformers_root", lambda: None)
    source = find_reference_source(ModelRepo.open(write_config(tmp_path, {"model_type": "glm5_next"})))
    assert source.kind == "none"
    assert source.reason.startswith("transformers is not installed")


@pytest.mark.parametrize("config", [{"model_type": 3}, {"architectures": "Toy"}, {"architectures": [1]}])
def test_an_invalid_config(tmp_path: Path, config: dict) -> None:
    with pytest.raises(Day0Error, match="config.json: (model_type|architectures) is not"):
        find_reference_source(ModelRepo.open(write_config(tmp_path, config)))
