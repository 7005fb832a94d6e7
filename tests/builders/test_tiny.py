import sys
from pathlib import Path
from subprocess import run

import pytest
import torch
from transformers import AutoTokenizer

from tests.builders.families import FAMILIES
from tests.builders.tiny import build

TOKENS = torch.randint(0, 256, (2, 97), generator=torch.Generator().manual_seed(5))

# Fields that only matter on a prompt longer than what they allow, each with a value that allows everything.
BUDGETS = {
    "glm5_next": dict(index_topk=512, swiglu_limit=1e6),
    "qwen4_exp": dict(indexer_budget=512),
    "deepseek_v32": dict(index_topk=512),
}


def logits(model):
    return model(TOKENS, use_cache=False).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_moves_the_logits(family):
    model, _ = build(family, seed=3)
    before = logits(model)
    before.square().mean().backward()
    for name, parameter in model.named_parameters():
        if "visual" in name:
            continue
        if "indexer" in name:
            # A choice of tokens has no gradient, so another value is tried.
            with torch.no_grad():
                kept = parameter.clone()
                parameter.copy_(parameter.flip(0).roll(1, -1))
                moved = not torch.equal(logits(model), before)
                parameter.copy_(kept)
        else:
            moved = parameter.grad is not None and bool(parameter.grad.any())
        assert moved, f"{family}: {name}"


@pytest.mark.parametrize(("family", "field"), [(family, field) for family in BUDGETS for field in BUDGETS[family]])
@torch.no_grad()
def test_budgets_bite(family, field):
    within = build(family)[0]
    beyond = build(family, **{field: BUDGETS[family][field]})[0]
    assert (logits(within) - logits(beyond)).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_repo_gives_back_the_model(family, tiny_repo):
    model, _ = build(family, seed=1)
    repo = tiny_repo(family, seed=1)
    again, loading = type(model).from_pretrained(repo, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    # Loading may place tensors at another alignment, and another alignment may take another BLAS kernel: rounding only.
    assert (logits(again) - logits(model)).abs().max() < 1e-4
    assert logits(model)[0].argmax(-1).unique().numel() > 40, "the logits hardly depend on the prompt"


def test_a_repo_is_built_once(tiny_repo):
    repo = tiny_repo("qwen3_5", seed=1)
    weights = repo / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert tiny_repo("qwen3_5", seed=1) == repo
    assert weights.stat().st_mtime_ns == written
    assert tiny_repo("qwen3_5", seed=2) != repo


def test_bfloat16_keeps_float32_where_the_family_does(tiny_repo):
    from safetensors import safe_open

    with safe_open(tiny_repo("glm5_next", dtype="bfloat16") / "model.safetensors", "pt") as weights:
        dtypes = {name: weights.get_tensor(name).dtype for name in weights.keys()}
    assert dtypes["lm_head.weight"] == torch.bfloat16
    assert {dtype for name, dtype in dtypes.items() if name.endswith("A_log")} == {torch.float32}


def test_tokenizer_round_trips(tiny_repo):
    tokenizer = AutoTokenizer.from_pretrained(tiny_repo("qwen3_5", seed=1))
    text = "naïve\n\t∑ <pad> x"
    ids = tokenizer.encode("naïve\n\t∑", add_special_tokens=False)
    assert ids == list("naïve\n\t∑".encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template([dict(role="user", content="hi")], tokenize=False, add_generation_prompt=True)
    assert chat == "<bos>user\nhi<eot><bos>assistant\n"


def test_command_line(tmp_path):
    command = Path(__file__).parent / "cli.py"
    done = run([sys.executable, command, "qwen3_5", tmp_path / "repo", "--seed", "4"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (tmp_path / "repo").iterdir()}
