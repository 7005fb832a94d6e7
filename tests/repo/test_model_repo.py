import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from day0.errors import Day0Error
from day0.repo import ModelRepo
from tests.repo.safetensors_files import write_config, write_header_only, write_index, write_random

CONFIG = {"model_type": "toy", "hidden_size": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_config(tmp_path / "toy-model", CONFIG)


@pytest.fixture
def sharded(folder: Path) -> Path:
    write_random(folder / "model-1.safetensors", {"a": ("F32", (2, 3)), "b": ("BF16", (4,))})
    write_random(folder / "model-2.safetensors", {"c": ("I64", (5,))}, seed=1)
    write_index(folder, {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})
    return folder


def refused(message: str, folder: Path, **options: bool) -> str:
    with pytest.raises(Day0Error, match=message) as caught:
        _ = ModelRepo.open(folder, **options).tensors
    assert caught.value.hint and "\n" not in caught.value.message
    return caught.value.message


def test_importing_and_opening_needs_no_heavy_library(sharded: Path) -> None:
    heavy = ["huggingface_hub", "jinja2", "safetensors", "tokenizers", "torch", "transformers"]
    script = (
        "import sys\nfrom day0.repo import ModelRepo\n"
        "repo = ModelRepo.open(sys.argv[1])\nrepo.config, repo.tensors, repo.hash\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, sharded], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_sharded_folder(sharded: Path) -> None:
    repo = ModelRepo.open(str(sharded) + "/")
    assert (repo.name, repo.revision, repo.config) == ("toy-model", None, CONFIG)
    assert repo.has_weights
    assert [(t.name, t.dtype, t.shape, t.file) for t in repo.tensors.values()] == [
        ("a", "F32", (2, 3), "model-1.safetensors"),
        ("b", "BF16", (4,), "model-1.safetensors"),
        ("c", "I64", (5,), "model-2.safetensors"),
    ]
    library = load_file(sharded / "model-1.safetensors") | load_file(sharded / "model-2.safetensors")
    for name, expected in library.items():
        found = repo.read_tensor(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.view(torch.uint8).equal(expected.view(torch.uint8))


def test_relative_and_home_paths(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sharded)
    monkeypatch.setenv("HOME", str(sharded.parent))
    names = [ModelRepo.open(source).name for source in (".", "../toy-model", "~/toy-model/")]
    assert names == ["toy-model"] * 3


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "~/nowhere"])
def test_a_missing_folder(source: str) -> None:
    with pytest.raises(Day0Error, match="is not a folder"):
        ModelRepo.open(source)


@pytest.mark.parametrize("source", ["a/b/c", "org/na me", "", "org//x", "https://hub/org/name"])
def test_neither_folder_nor_id(source: str) -> None:
    with pytest.raises(Day0Error, match="neither a folder nor a hub id"):
        ModelRepo.open(source)


def test_a_file_is_not_a_folder(folder: Path) -> None:
    with pytest.raises(Day0Error, match="is not a folder"):
        ModelRepo.open(folder / "config.json")


def test_a_folder_takes_no_revision(folder: Path) -> None:
    with pytest.raises(Day0Error, match="no revision"):
        ModelRepo.open(folder, revision="main")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[1]", "config.json is not a JSON object"),
        ('{"a": ' + "9" * 5000 + "}", r"config.json is not usable JSON \(it holds a number of thousands of digits\)"),
        ("[" * 50000, r"config.json is not usable JSON \(it nests too deeply\)"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', r"config.json is not usable JSON \(it gives the key 'b' twice\)"),
        ("\ud800", "config.json is not UTF-8"),
    ],
)
def test_an_invalid_config(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(Day0Error, match=message):
        _ = ModelRepo.open(folder).config


def test_a_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(Day0Error, match="has no config.json"):
        _ = ModelRepo.open(folder).config


def test_infinity_in_a_config_is_read(folder: Path) -> None:
    (folder / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    assert ModelRepo.open(folder).config["time_step_limit"] == [0.0, float("inf")]


def test_a_repo_without_weights(folder: Path) -> None:
    repo = ModelRepo.open(folder)
    assert (repo.has_weights, repo.tensors, repo.generation_config) == (False, {}, {})
    assert repo.find_non_finite() == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights/consolidated.00.pth"])
def test_a_pickle_only_checkpoint(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"\x80\x04.")
    assert name in refused("pickle-only", folder)
    write_random(folder / "model.safetensors", {"w": ("F32", (2,))})
    assert ModelRepo.open(folder).tensors.keys() == {"w"}


def test_a_single_file_comes_before_an_index(sharded: Path) -> None:
    write_random(sharded / "model.safetensors", {"only": ("F32", (2,))})
    assert ModelRepo.open(sharded).tensors.keys() == {"only"}


def test_weights_without_index(folder: Path) -> None:
    write_random(folder / "model-00001-of-00002.safetensors", {"w": ("F32", (2,))})
    refused("but neither model.safetensors nor model.safetensors.index.json", folder)


def test_an_index_that_names_a_missing_shard(sharded: Path) -> None:
    (sharded / "model-2.safetensors").unlink()
    refused("names model-2.safetensors, which is not in the repo", sharded)


def test_an_index_that_names_a_tensor_its_shard_lacks(sharded: Path) -> None:
    write_index(sharded, {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"})
    refused("places 'b' in model-2.safetensors, which does not hold it", sharded)


def test_a_tensor_that_the_index_leaves_out(sharded: Path) -> None:
    write_index(sharded, {"a": "model-1.safetensors", "c": "model-2.safetensors"})
    refused("model-1.safetensors holds 'b', which .* does not place there", sharded)


def test_a_tensor_that_two_shards_hold(sharded: Path) -> None:
    write_random(sharded / "model-2.safetensors", {"c": ("I64", (5,)), "a": ("F32", (2, 3))})
    refused("model-2.safetensors holds 'a', which .* does not place there", sharded)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/x.safetensors", "outside the repo"),
        ("../x.safetensors", "outside the repo"),
        ("a/../../x.safetensors", "outside the repo"),
        ("a\\..\\x.safetensors", "outside the repo"),
        ("x.bin", "not a safetensors file"),
        (3, "not a safetensors file"),
    ],
)
def test_an_index_that_names_an_odd_path(sharded: Path, path: object, message: str) -> None:
    write_random(sharded.parent / "x.safetensors", {"a": ("F32", (2, 3))})
    write_index(sharded, {"a": path})
    refused(message, sharded)


TWICE = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "a": "model-00002-of-00002.safetensors"}}'


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', TWICE])
def test_a_broken_index(sharded: Path, index: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(index)
    refused("model.safetensors.index.json (is not (valid|usable) JSON|has no weight_map)", sharded)


def test_a_link_out_of_the_folder(folder: Path) -> None:
    write_random(folder.parent / "elsewhere.safetensors", {"w": ("F32", (2,))})
    (folder / "model.safetensors").symlink_to(folder.parent / "elsewhere.safetensors")
    refused("is a link to .*elsewhere.safetensors, outside the repo", folder)
    (folder / "model.safetensors").unlink()
    write_random(folder / "inside.safetensors", {"w": ("F32", (2,))})
    (folder / "model.safetensors").symlink_to("inside.safetensors")
    assert ModelRepo.open(folder).tensors.keys() == {"w"}


def test_a_config_that_links_out_of_the_folder(folder: Path) -> None:
    secret = folder.parent / "secret.json"
    secret.write_text("{}")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(secret)
    with pytest.raises(Day0Error, match="outside the repo"):
        _ = ModelRepo.open(folder).config


def test_a_hub_cache_snapshot_may_link_to_its_blobs(folder: Path) -> None:
    snapshot = folder.parent / "hub" / "models--o--n" / "snapshots" / "abc"
    blobs = snapshot.parents[1] / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(folder, blobs)
    (snapshot / "config.json").symlink_to("../../blobs/config.json")
    assert ModelRepo.open(snapshot).config == CONFIG


def test_a_truncated_shard(sharded: Path) -> None:
    file = sharded / "model-2.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    refused("model-2.safetensors: tensor 'c' ends at byte 40 of a data area of 39 bytes", sharded)


def test_headers_only(folder: Path) -> None:
    write_header_only(folder / "model.safetensors", {"w": ("BF16", (10**6, 10**5))})
    refused("data area of 0 bytes", folder)
    repo = ModelRepo.open(folder, headers_only=True)
    assert repo.tensors["w"].numel == 10**11
    write_header_only(folder / "model.safetensors", {"w": ("BF16", (10, 10))})
    with pytest.raises(Day0Error, match="only 0 of 200 bytes"):
        ModelRepo.open(folder, headers_only=True).read_tensor("w")


def test_an_unknown_tensor(sharded: Path) -> None:
    with pytest.raises(Day0Error, match="has no tensor 'nope'"):
        ModelRepo.open(sharded).read_tensor("nope")


def test_reads_every_dtype_that_torch_and_safetensors_share(folder: Path) -> None:
    values = torch.tensor([[0.0, 1.5, -2.0], [0.5, 4.0, -0.25]])
    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
    floats += [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
    integers = [
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.uint16,
        torch.int32,
        torch.uint32,
        torch.int64,
        torch.uint64,
    ]
    tensors = {str(dtype): values.to(dtype) for dtype in floats}
    tensors |= {str(dtype): torch.tensor([3, 0, 100]).to(dtype) for dtype in integers}
    tensors |= {"bool": torch.tensor([True, False]), "complex": torch.tensor([1 + 2j]), "empty": torch.empty(0, 3)}
    tensors |= {"e8m0": torch.tensor([1.0, 4.0]).to(torch.float8_e8m0fnu)}
    save_file(tensors, folder / "model.safetensors")
    repo = ModelRepo.open(folder)
    for name, expected in tensors.items():
        found = repo.read_tensor(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.view(torch.uint8).equal(expected.view(torch.uint8)), name


def test_f4_is_read_packed_and_f6_is_refused(folder: Path) -> None:
    write_random(folder / "model.safetensors", {"f4": ("F4", (3, 8)), "odd": ("F4", (2, 1)), "f6": ("F6_E2M3", (4,))})
    repo = ModelRepo.open(folder)
    tensor = repo.read_tensor("f4")
    assert (tensor.dtype, tensor.shape) == (torch.float4_e2m1fn_x2, (3, 4))
    assert repo.find_non_finite(["f4"]) == []
    with pytest.raises(Day0Error, match="F4 with an odd last dimension"):
        repo.read_tensor("odd")
    with pytest.raises(Day0Error, match="'f6' has dtype F6_E2M3, which torch .* lacks"):
        repo.read_tensor("f6")


def test_non_finite_weights_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from day0.repo import tensor_data

    monkeypatch.setattr(tensor_data, "_CHECK_ELEMENTS", 7)  # so that the last of several chunks matters
    bad = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e5m2):
        bad[f"inf.{dtype}"] = torch.ones(3, 10, dtype=dtype)
        bad[f"inf.{dtype}"].view(-1)[29] = float("-inf")
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu):
        bad[f"nan.{dtype}"] = torch.ones(30, dtype=torch.float32).index_fill(0, torch.tensor([29]), torch.nan).to(dtype)
    bad["complex"] = torch.tensor([complex(0, float("nan"))])
    good = {
        "fine": torch.randn(30),
        "e4m3": torch.full((9,), 448.0).to(torch.float8_e4m3fn),
        "ints": torch.ones(3).int(),
    }
    save_file(bad | good, folder / "model.safetensors")
    repo = ModelRepo.open(folder)
    assert sorted(repo.find_non_finite()) == sorted(bad)
    assert repo.find_non_finite(["fine", "complex", "nan.torch.bfloat16"]) == ["complex", "nan.torch.bfloat16"]


def test_hash_depends_on_content_alone(sharded: Path) -> None:
    first = ModelRepo.open(sharded).hash
    copy = sharded.parent / "copy"
    shutil.copytree(sharded, copy)
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    write_index(copy, dict(reversed(index["weight_map"].items())))
    (copy / "README.md").write_text("words")
    assert ModelRepo.open(copy).hash == first
    assert len(first) == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: write_config(folder, CONFIG | {"hidden_size": 9}),
        lambda folder: write_random(folder / "model-1.safetensors", {"a": ("F32", (3, 2)), "b": ("BF16", (4,))}),
        lambda folder: write_random(folder / "model-2.safetensors", {"c": ("U64", (5,))}),
        lambda folder: write_random(folder / "model-2.safetensors", {"c": ("I64", (5,))}, seed=9),
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        lambda folder: (folder / "chat_template.jinja").write_text("x"),
        lambda folder: (folder / "generation_config.json").write_text("{}"),
        lambda folder: (folder / "modeling_toy.py").write_text("pass"),
    ],
    ids=["config", "shape", "dtype", "weights", "tokenizer", "template", "generation config", "code"],
)
def test_hash_changes_with_what_it_covers(sharded: Path, change) -> None:
    before = ModelRepo.open(sharded).hash
    change(sharded)
    assert ModelRepo.open(sharded).hash != before


def test_code_tokenizer_and_template_files(folder: Path) -> None:
    (folder / "modeling_toy.py").write_text("raise SystemExit")
    (folder / "sub").mkdir()
    (folder / "sub" / "extra.py").write_text("raise SystemExit")
    (folder / ".git").mkdir()
    (folder / ".git" / "hook.py").write_text("")
    (folder / "vocab.json").write_text("{}")
    auto_map = {"AutoModelForCausalLM": "modeling_toy.Toy"}
    write_config(folder, CONFIG | {"auto_map": auto_map})
    repo = ModelRepo.open(folder)
    assert repo.python_files == ("modeling_toy.py", "sub/extra.py")
    assert (repo.auto_map, repo.tokenizer_files, repo.chat_template) == (auto_map, ("vocab.json",), None)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ 1 }}", "{{ 1 }}"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
    ],
)
def test_chat_template_of_the_tokenizer_config(folder: Path, template: object, expected: str | None) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert ModelRepo.open(folder).chat_template == expected
    (folder / "chat_template.jinja").write_text("of the file")
    assert ModelRepo.open(folder).chat_template == "of the file"


@pytest.mark.parametrize("auto_map", [["x"], {"AutoModel": 1}])
def test_an_invalid_auto_map(folder: Path, auto_map: object) -> None:
    write_config(folder, CONFIG | {"auto_map": auto_map})
    with pytest.raises(Day0Error, match="auto_map is not an object of strings"):
        _ = ModelRepo.open(folder).auto_map


def test_the_hash_tells_weights_of_the_same_shapes_apart(tmp_path):
    first, same, other = (tmp_path / name for name in ("first", "same", "other"))
    weights = torch.randn(300, 70, generator=torch.Generator().manual_seed(1))
    for folder, tensor in ((first, weights), (same, weights), (other, weights + 1e-3)):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        save_file({"w": tensor}, folder / "model.safetensors")
    assert ModelRepo.open(first).hash == ModelRepo.open(same).hash
    assert ModelRepo.open(first).hash != ModelRepo.open(other).hash


def test_nan_in_a_config_is_refused_and_infinity_is_not(folder: Path) -> None:
    (folder / "config.json").write_text('{"limit": [0.0, Infinity]}')
    assert ModelRepo.open(folder).config["limit"][1] == float("inf")
    (folder / "config.json").write_text('{"eps": NaN}')
    with pytest.raises(Day0Error, match="NaN is no number"):
        _ = ModelRepo.open(folder).config


def test_a_workspace_in_the_folder_is_not_the_repos(sharded: Path) -> None:
    before = ModelRepo.open(sharded)
    for name in ("toy-model.day0", "renamed"):
        (sharded / name / "package").mkdir(parents=True)
        (sharded / name / "package" / "model.py").write_text("class Model: ...\n")
    (sharded / "renamed" / "workspace.json").write_text("{}")
    after = ModelRepo.open(sharded)
    assert after.python_files == () and after.file_names == before.file_names and after.hash == before.hash
    (sharded / "code").mkdir()
    (sharded / "code" / "model.py").write_text("class Model: ...\n")
    assert ModelRepo.open(sharded).python_files == ("code/model.py",)
