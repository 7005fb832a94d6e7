"""Layer by layer: the same verdicts as at once, in the memory of one layer."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from day0.align import stream
from day0.align.exactness import Exactness, check_exactness
from day0.align.gates import exactness_gate
from day0.align.layer_by_layer import reference_layer
from day0.align.stream import stream_exactness
from day0.errors import Day0Error
from day0.language.program import apply_recipe
from day0.repo.model_repo import ModelRepo

from .packages import recipe_of, write_program


def test_agrees_with_the_whole_model(repo, folder, prompts, exact_package, expected):
    streamed = stream_exactness(repo, folder, prompts)
    assert streamed.bad == [] and {row.verdict for row in streamed.rows} == {"holds"}
    assert [(row.layer, row.prompt) for row in streamed.rows if row.prompt == "short"] == [
        (0, "short"), (0, "short"), (1, "short"), (2, "short"), (3, "short"), (None, "short")
    ]  # fmt: skip
    # the chain of stored outputs ends in the whole reference's logits: both compare the same package with it
    assert [row.operator for row in streamed.rows if row.layer == 0] == ["input", "input", "layer", "layer"]
    whole = [row for row in check_exactness(exact_package, expected).rows if row.operator == "layer"]
    assert max(row.error for row in streamed.rows) < 10 * max(row.error for row in whole) + 1e-15


def test_the_operator_of_a_differing_layer_is_named(repo, prompts, tmp_path):
    recipe = recipe_of(repo)
    wrong = {**recipe.operators, "delta_norm": {**recipe.operators["delta_norm"], "eps": 1e-3}}
    program = apply_recipe(recipe.model_copy(update={"operators": wrong}), repo.config, repo.tensors)
    streamed = stream_exactness(repo, write_program(program, repo, tmp_path / "package"), prompts)
    assert [(bad.layer, bad.operator) for bad in streamed.bad] == [(i, "delta_norm") for i in (0, 1, 2)]
    assert {row.layer for row in streamed.rows if row.verdict != "holds"} == {0, 1, 2}


def test_a_wrong_head_shows_in_the_logits(repo, prompts, tmp_path):
    recipe = recipe_of(repo)
    wrong = {**recipe.operators, "final_norm": {**recipe.operators["final_norm"], "eps": 1e-3}}
    program = apply_recipe(recipe.model_copy(update={"operators": wrong}), repo.config, repo.tensors)
    streamed = stream_exactness(repo, write_program(program, repo, tmp_path / "package"), prompts)
    assert {(row.layer, row.operator) for row in streamed.rows if row.verdict != "holds"} == {(None, "logits")}


def test_every_layer_gets_the_prompt_s_ids(repo, folder, prompts, monkeypatch):
    """A layer may read them (hash routing, n-gram embeddings): the reference must see what the package does."""
    given = []
    captured = stream.capture_reference
    monkeypatch.setattr(
        stream, "capture_reference", lambda side, ids, **more: given.append(tuple(ids)) or captured(side, ids, **more)
    )
    assert all(row.verdict == "holds" for row in stream_exactness(repo, folder, prompts[:1]).rows)
    assert given == [prompts[0].ids] * 4


def test_a_missing_weight_of_the_layer_is_refused_whatever_it_is_called(repo, monkeypatch):
    """Only the text model's own layers count: another list of layers in the class may be left empty."""
    monkeypatch.setattr(
        repo, "tensors", {name: t for name, t in repo.tensors.items() if not name.endswith("1.input_layernorm.weight")}
    )
    with pytest.raises(Day0Error, match=r"layer 1 cannot be built alone: it lacks model\.layers\.0\.input_layernorm"):
        reference_layer(repo, 1, dtype=torch.float64, outer=False)


# Runs under a limit on its address space: what it has after loading the libraries, and an allowance.
UNDER_A_LIMIT = """
    import resource, sys
    from pathlib import Path
    import torch
    from day0.align.stream import stream_exactness
    from day0.align.training_side import reference_in
    from day0.artifacts.alignment import Prompt
    from day0.engine.package import load_package
    from day0.reference.load import build_reference, config_from_dict
    from day0.repo.model_repo import ModelRepo
    repo, folder, way, allowance = ModelRepo.open(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    # what the libraries map on first use is no part of the measure
    build_reference(config_from_dict(repo.config)[0], device="meta")
    torch.randn(8, 8) @ torch.randn(8, 8)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + allowance, held + allowance))
    if way == "stream":
        result = stream_exactness(repo, folder, [Prompt(name="a", ids=(1, 2, 3, 4, 5))])
        assert all(row.verdict == "holds" for row in result.rows), result.bad
    else:
        package = load_package(folder, repo, dtype=torch.float64)
        reference = reference_in(repo, torch.float64)
    print("done")
"""


def run_within(repo: ModelRepo, folder: Path, way: str, allowance: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(UNDER_A_LIMIT), repo.source, str(folder), way, str(allowance)]
    # One arena, and large blocks given back at once: address space is then what the program holds.
    settings = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **settings})


def test_peak_is_one_layer(tiny_repo, tmp_path):
    """16 equal layers: whole, package and reference are 32 layers in float64."""
    repo = ModelRepo.open(tiny_repo("olmo_hybrid", layers=16, intermediate_size=6144))
    program = apply_recipe(recipe_of(repo), repo.config, repo.tensors)
    folder = write_program(program, repo, tmp_path / "package")
    elements = sum(torch.Size(h.shape).numel() for n, h in repo.tensors.items() if ".layers." in n)
    layer = 8 * elements // 16
    # The layer, the checkpoint's tensors that it is made of and the copy while it is converted (at most three layers);
    # 100 MB are for what torch and transformers map as they run (thread stacks, lazily loaded modules).
    allowance = 3 * layer + 100_000_000
    assert allowance < 16 * layer
    whole = run_within(repo, folder, "whole", allowance)
    # out of address space: for a tensor, or for the stack of a thread that would fill one
    assert whole.returncode != 0 and re.search("can't (allocate memory|start new thread)", whole.stderr)
    streamed = run_within(repo, folder, "stream", allowance)
    assert streamed.returncode == 0, streamed.stderr[-2000:]


def test_a_wrong_embedding_shows_in_the_first_layer_s_input(repo, prompts, tmp_path):
    recipe = recipe_of(repo)
    wrong = {**recipe.operators, "embed": {**recipe.operators["embed"], "scale": 1.25}}
    program = apply_recipe(recipe.model_copy(update={"operators": wrong}), repo.config, repo.tensors)
    streamed = stream_exactness(repo, write_program(program, repo, tmp_path / "package"), prompts[:1])
    assert [(row.layer, row.operator) for row in streamed.rows if row.verdict != "holds"] == [(0, "input")]
    assert streamed.rows[0].error == pytest.approx(0.25)
    assert exactness_gate("e", Exactness(rows=streamed.rows)).detail == "input 0: relative error 2.50e-01"


def test_layers_listed_by_number_and_several_streams(tiny_repo, tmp_path, prompts):
    """Layers 1 and 2 have n-gram tables of their own; what they take is [T, streams, width] in the package alone."""
    repo = ModelRepo.open(tiny_repo("qwen4_exp"))
    recipe = recipe_of(repo)
    folder = write_program(apply_recipe(recipe, repo.config, repo.tensors), repo, tmp_path / "package")
    assert recipe.reference.layer_numbers == {"ple_layer_ids": 1}
    streamed = stream_exactness(repo, folder, prompts[:1], layer_numbers=recipe.reference.layer_numbers)
    assert [row.verdict for row in streamed.rows] == ["holds"] * 6
    with pytest.raises(Day0Error, match="cannot be built alone"):
        stream_exactness(repo, folder, prompts[:1])
