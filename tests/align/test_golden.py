"""Recordings of the training side: what the script writes, align reads; what differs is found."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from day0.align import record as record_module
from day0.align.gates import rows_gate
from day0.align.golden import compare_golden, read_golden
from day0.align.record import first_tensor, record
from day0.errors import Day0Error
from day0.reference.float64 import float64_arithmetic, loaded_in_float64
from day0.reference.load import load_reference

PROMPTS = [[5, 9, 200, 31, 7, 7, 88], [1, 2, 3, 250, 4, 60, 60, 61, 3, 17, 99]]


@pytest.fixture(scope="module")
def in_float64(repo, tmp_path_factory):
    path = tmp_path_factory.mktemp("golden") / "float64.safetensors"
    model = loaded_in_float64(repo)
    with float64_arithmetic():
        record(model, list(model.model.layers), PROMPTS, str(path), new=6)
    return path


def test_a_float64_recording_holds_exactly(exact_package, in_float64):
    golden = read_golden(in_float64)
    assert (golden.dtype, golden.layers, [p.ids for p in golden.prompts]) == (torch.float64, 4, PROMPTS)
    result = compare_golden(exact_package, exact_package, golden, bound=1e-10)
    assert rows_gate("golden", result.rows, "it").verdict == "holds"
    assert len(result.rows) == 2 * (4 + 4 + 1) and max(row.error for row in result.rows) < 1e-13
    assert [(cell.classified, cell.tokens) for cell in result.greedy] == [("equal", 6)] * 2


def test_a_wrong_layer_is_named(exact_package, in_float64):
    operator = next(op for op in exact_package.operators() if op.name == "layers.1.delta_out")
    operator.weight.data[3] *= 1.001
    rows = compare_golden(exact_package, exact_package, read_golden(in_float64), bound=1e-10).rows
    assert {row.layer for row in rows if row.mode == "isolated" and row.verdict != "holds"} == {1}
    gate = rows_gate("golden", rows, "it")
    assert gate.verdict == "does not hold" and gate.detail.startswith("layer 1 (golden 0, isolated)")


def test_a_float32_recording_is_held_to_rounding(repo, exact_package, package, tmp_path):
    path = tmp_path / "float32.safetensors"
    model = load_reference(repo)
    record(model, list(model.model.layers), PROMPTS, str(path), new=0)
    result = compare_golden(exact_package, package, read_golden(path), bound=1e-10)
    assert {row.verdict for row in result.rows} == {"holds"} and result.greedy == []
    assert all(1e-9 < row.error and row.ratio < 2 for row in result.rows)
    # a hundred times the rounding does not hold
    tensors = load_file(path)
    with_metadata = read_metadata(path)
    tensors["0.layer.2.output"] *= 1 + 1e-5
    save_file(tensors, path, with_metadata)
    rows = compare_golden(exact_package, package, read_golden(path), bound=1e-10).rows
    assert {(r.prompt, r.layer) for r in rows if r.verdict != "holds"} == {("golden 0", 2)}


def read_metadata(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata()


def test_the_script_stands_alone(tmp_path):
    """Run as a file, in a folder where day0 cannot be imported by path, on a model that is no transformers model."""
    source = Path(record_module.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 105 and "day0" not in source.replace("day0 align", "").replace("day0-golden", "")
    (tmp_path / "record.py").write_text(source)
    (tmp_path / "tiny.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Block(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.up = nn.Linear(8, 8)\n"
        "    def forward(self, hidden_states, mask=None):\n"
        "        return (hidden_states + self.up(hidden_states.float()), None)\n"
        "class Tiny(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.embed = nn.Embedding(16, 8)\n"
        "        self.layers = nn.ModuleList(Block() for _ in range(2))\n        self.head = nn.Linear(8, 16)\n"
        "    def forward(self, ids):\n        h = self.embed(ids)\n"
        "        for layer in self.layers:\n"
        "            h = layer(mask=torch.ones(1, dtype=torch.bool), hidden_states=h)[0]\n"
        "        return self.head(h)\n"
        "def load():\n    torch.manual_seed(0)\n    return Tiny()\n"
    )
    command = [sys.executable, "record.py", "tiny:load", "out.safetensors", "--layers", "layers"]
    command += ["--prompt", "1,5,9", "--prompt", "3,3,2,1,0", "--new", "4", "--float64"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    golden = read_golden(tmp_path / "out.safetensors")
    assert (golden.model, golden.dtype, golden.layers) == ("Tiny", torch.float64, 2)
    assert [p.ids for p in golden.prompts] == [[1, 5, 9], [3, 3, 2, 1, 0]]
    first = golden.prompts[0]
    assert torch.equal(first.layer_outputs[0], first.layer_inputs[1]) and first.logits.shape == (3, 16)
    assert first.new_ids[0] == int(first.logits[-1].argmax()) and len(first.new_margins) == 4


def test_hidden_states_are_found_among_arguments():
    hidden, other = torch.zeros(1), torch.ones(1)
    assert first_tensor([(), {"mask": other, "hidden_states": hidden}]) is hidden
    assert first_tensor((torch.ones(1, dtype=torch.int64), (None, hidden))) is hidden
    assert first_tensor({"flag": True}) is None


def test_bad_files_are_refused(tmp_path, in_float64):
    with pytest.raises(Day0Error, match="does not exist"):
        read_golden(tmp_path / "none")
    (tmp_path / "text").write_text("no safetensors")
    with pytest.raises(Day0Error, match="no safetensors file"):
        read_golden(tmp_path / "text")
    tensors, facts = load_file(in_float64), read_metadata(in_float64)
    save_file(tensors, tmp_path / "other", {**facts, "format": "other-2"})
    with pytest.raises(Day0Error, match="format other-2"):
        read_golden(tmp_path / "other")
    save_file({n: t for n, t in tensors.items() if n != "1.layer.3.output"}, tmp_path / "lacking", facts)
    with pytest.raises(Day0Error, match=r"lacks 1\.layer\.3\.output"):
        read_golden(tmp_path / "lacking")


@pytest.mark.parametrize("name", ["layers", "prompts"])
def test_metadata_that_count_nothing_are_refused(tmp_path, in_float64, name):
    tensors, facts = load_file(in_float64), read_metadata(in_float64)
    save_file(tensors, tmp_path / "words", {**facts, name: "four"})
    with pytest.raises(Day0Error, match=f"'four' {name}"):
        read_golden(tmp_path / "words")
    save_file(tensors, tmp_path / "none", {key: value for key, value in facts.items() if key != name})
    with pytest.raises(Day0Error, match=f"lacks {name}"):
        read_golden(tmp_path / "none")


@pytest.mark.parametrize("name", ["input_ids", "logits", "new_ids", "new_margins"])
def test_a_tensor_without_axes_is_refused(tmp_path, in_float64, name):
    tensors, facts = load_file(in_float64), read_metadata(in_float64)
    save_file({**tensors, f"1.{name}": torch.tensor(1.0)}, tmp_path / "scalar", facts)
    with pytest.raises(Day0Error, match=rf"1\.{name} has 0 axes"):
        read_golden(tmp_path / "scalar")


def test_another_model_is_refused(exact_package, in_float64):
    golden = read_golden(in_float64)
    exact_package.layers = exact_package.layers[:3]
    with pytest.raises(Day0Error, match="4 layers, the package 3"):
        compare_golden(exact_package, exact_package, golden, bound=1e-10)
