"""A package whose plan takes the fused kernels: the same function as with plain PyTorch, prompt, decode and state."""

import pytest
import torch

from day0.artifacts.plan import Plan
from day0.demo import model_path
from day0.engine.package import load_package
from day0.engine.runner import Runner
from day0.mapping.choose import is_fused
from day0.pipeline import RunOptions, open_line
from day0.repo.model_repo import ModelRepo

# The precision gate: twice the error of plain PyTorch in the same dtype, against float64.
ALLOWED_RATIO = 2.0
FAMILIES = ["demo", "glm5_next", "kimi_linear", "qwen3_next", "deepseek_v32", "qwen4_exp", "olmo_hybrid"]


def package(folder, repo, *, fused, dtype, device):
    """The package as its plan has it, interpreted where there is no GPU, or with plain PyTorch throughout."""
    model = load_package(folder, repo, dtype=dtype, device=device)
    if not fused:
        model.choose({})
    elif device == "cpu":
        assert model.stood_in() == {
            "Triton compiles it for CUDA devices": sum(1 for o in model.operators() if o.stood_in)
        }
        model.choose(planned(folder.parent))
    else:
        assert not model.stood_in()
    return model


def planned(folder):
    chosen = {}
    for line in Plan.read(folder).lines:
        chosen.setdefault(line.operator, {})[line.phase] = line.implementation
    return chosen


def run(model, ids, chunks, device, greedy):
    """Logits of a prompt in these chunks, the state after it, and a greedy continuation."""
    runner = Runner(model, sequences=2, tokens=len(ids) + greedy + 1, device=device, poison=True)
    _, logits = runner.prefill(ids, chunks=chunks)
    state = {name: pool.nan_to_num().double().cpu() for name, pool in runner.memory.items()}
    tokens = Runner(model, sequences=2, tokens=len(ids) + greedy + 1, device=device, poison=True).greedy(
        ids, count=greedy
    )
    return logits.double().cpu(), state, tokens.ids


def distance(x, exact):
    return float((x - exact).norm() / exact.norm())


def compare(source, folder, ids, chunks, *, device, greedy):
    line = open_line(str(source), RunOptions(trust_recipe=True, device="h200", dtype="float32"), folder)
    for stage in ("decompose", "map", "generate"):
        line.run_one(stage)
    fused = {(line.kind, line.phase) for line in Plan.read(folder).lines if is_fused(line.implementation)}
    assert {kind for kind, phase in fused if phase == "decode"} >= {"norm", "residual_mix"}
    repo, where = ModelRepo.open(source), folder / "package"
    exact, exact_state, _ = run(
        package(where, repo, fused=False, dtype=torch.float64, device="cpu"), ids, chunks, "cpu", 1
    )
    plain = run(package(where, repo, fused=False, dtype=torch.float32, device=device), ids, chunks, device, greedy)
    found = run(package(where, repo, fused=True, dtype=torch.float32, device=device), ids, chunks, device, greedy)
    assert distance(found[0], exact) <= ALLOWED_RATIO * distance(plain[0], exact)
    for name, pool in exact_state.items():
        bound = ALLOWED_RATIO * distance(plain[1][name], pool) + torch.finfo(torch.float32).eps
        assert distance(found[1][name], pool) <= bound, name
    assert found[2] == plain[2]


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_on_the_gpu(family, tiny_repo, tmp_path):
    source = model_path() if family == "demo" else tiny_repo(family)
    ids = torch.randint(0, 200, (197,), generator=torch.Generator().manual_seed(2)).tolist()
    compare(source, tmp_path / "model.day0", ids, [130, 1, 2, 64], device="cuda", greedy=48)


@pytest.mark.verify
@pytest.mark.parametrize("family", ["kimi_linear"])
def test_interpreted(family, tiny_repo, tmp_path):
    ids = torch.randint(0, 200, (9,), generator=torch.Generator().manual_seed(2)).tolist()
    compare(tiny_repo(family, layers=4), tmp_path / "model.day0", ids, [6, 1, 2], device="cpu", greedy=2)
