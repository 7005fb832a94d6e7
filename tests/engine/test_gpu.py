"""A package on a GPU computes what it computes on the CPU: nothing in it or in the references is tied to a device."""

import pytest
import torch

from day0.demo import model_path
from day0.engine.package import load_package
from day0.engine.runner import Runner
from day0.pipeline import RunOptions, open_line
from day0.repo import ModelRepo

# float64 on both sides, sums in other orders: the bound of the exactness gate.
EXACT = 1e-10


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["demo", "kimi_linear", "qwen3_next", "deepseek_v32", "qwen4_exp"])
def test_logits_and_state_are_those_of_the_cpu(family, tiny_repo, tmp_path):
    source = model_path() if family == "demo" else tiny_repo(family)
    # decompose would prove it again; the package needs no more than what map and generate write
    line = open_line(str(source), RunOptions(trust_recipe=True), tmp_path / "model.day0")
    for stage in ("decompose", "map", "generate"):
        line.run_one(stage)
    repo = ModelRepo.open(source)
    ids = torch.randint(0, 200, (97,), generator=torch.Generator().manual_seed(2)).tolist()
    logits, state = {}, {}
    for device in ("cpu", "cuda"):
        model = load_package(tmp_path / "model.day0" / "package", repo, dtype=torch.float64, device=device)
        runner = Runner(model, sequences=2, tokens=128, device=device, poison=True)
        _, chunked = runner.prefill(ids, chunks=[40, 1, 3])
        logits[device] = chunked.cpu()
        state[device] = {name: pool.nan_to_num().double().norm().cpu() for name, pool in runner.memory.items()}
    error = (logits["cuda"] - logits["cpu"]).norm() / logits["cpu"].norm()
    assert error < EXACT
    for name, norm in state["cpu"].items():
        assert abs(state["cuda"][name] - norm) <= EXACT * norm, name
