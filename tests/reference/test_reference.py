"""The training side: loading, honest float64, running, tracing, shrinking, and watching its config."""

import dataclasses
import sys

import pytest
import torch
from torch import nn

from day0.errors import Day0Error
from day0.reference.config_watch import watch_reads
from day0.reference.float64 import float64_arithmetic, loaded_in_float64
from day0.reference.load import build_reference, load_reference, resolve_config
from day0.reference.random_weights import randomise
from day0.reference.runner import ReferenceRunner
from day0.reference.shrink import PROMPT_TOKENS, covering_layers, shrink_config
from day0.reference.trace import functions_called, trace
from day0.repo import ModelRepo

IDS = torch.randint(0, 256, (41,), generator=torch.Generator().manual_seed(11))


@pytest.fixture(scope="module")
def repo(tiny_repo):
    return ModelRepo.open(tiny_repo("glm5_next"))


@pytest.fixture(scope="module")
def exact(repo):
    return loaded_in_float64(repo)


def full_size(root, name):
    return resolve_config(ModelRepo.open(root / "tests" / "data" / name))[0]


def test_float64_is_honest(repo, exact):
    single, _ = ReferenceRunner(load_reference(repo)).forward(IDS)
    with float64_arithmetic():
        double, _ = ReferenceRunner(exact).forward(IDS)
    leaky, _ = ReferenceRunner(exact).forward(IDS)
    assert double.dtype == torch.float64
    # Float32 carries 6e-8 per operation, and a few hundred follow each other; float64 in name only is no nearer.
    assert 1e-7 < (single - double).abs().max() < 1e-3
    assert (leaky - double).abs().max() > 1e-9


def test_float64_cached_equals_full(exact):
    """What float32 noise hides at 1e-5 must agree to summation order."""
    runner = ReferenceRunner(exact)
    with float64_arithmetic():
        whole, none = runner.forward(IDS)
        first, cache = runner.forward(IDS[:30], use_cache=True)
        second, cache = runner.forward(IDS[30:40], 30, cache, use_cache=True)
        third, _ = runner.forward(IDS[40:], 40, cache, use_cache=True)
    assert none is None
    assert (torch.cat([first, second, third]) - whole).abs().max() < 1e-11


def test_float64_names_come_back():
    kept = torch.float32, torch.float, torch.Tensor.float
    with pytest.raises(ZeroDivisionError), float64_arithmetic():
        assert torch.zeros(1, dtype=torch.int64).float().dtype == torch.float64
        raise ZeroDivisionError
    assert (torch.float32, torch.float, torch.Tensor.float) == kept
    assert torch.ones(1).float().dtype == kept[0]


def test_greedy(exact):
    runner = ReferenceRunner(exact)
    with float64_arithmetic():
        greedy = runner.greedy(IDS, 5)
        logits, _ = runner.forward(torch.cat([IDS, greedy.ids[:-1]]))
    rows = logits[-5:]
    assert torch.equal(rows.argmax(-1), greedy.ids)
    best = rows.sort(dim=-1, descending=True).values
    assert (greedy.margins - (best[:, 0] - best[:, 1])).abs().max() < 1e-11
    assert (greedy.logits - rows).abs().max() < 1e-11


def test_first_layers_only(repo):
    model = load_reference(repo, layers=2)
    whole = load_reference(repo)
    assert len(model.model.language_model.layers) == 2
    assert torch.equal(
        model.model.language_model.layers[1].self_attn.o_proj.weight,
        whole.model.language_model.layers[1].self_attn.o_proj.weight,
    )
    with pytest.raises(Day0Error, match="9 layers of a model of 4"):
        load_reference(repo, layers=9)


def test_what_cannot_be_loaded(root):
    with pytest.raises(Day0Error, match="has no weights"):
        load_reference(ModelRepo.open(root / "tests" / "data" / "qwen4-exp"))


def test_foreign_code_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "made_up", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}'
    )
    (tmp_path / "code.py").write_text("raise SystemExit('ran')")
    for trusted in (False, True):
        with pytest.raises(Day0Error, match="own code"):
            resolve_config(ModelRepo.open(tmp_path), trust_remote_code=trusted)


class Inner(nn.Module):
    def forward(self, x):
        y = x * 2
        x.add_(1)
        return y


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x, scale=3):
        hidden = self.inner(x) + self.inner(x)
        return helper(hidden, scale) - 1


def helper(value, scale):
    scaled = value * scale
    value += 100
    return scaled


def test_trace_of_modules_functions_and_locals():
    model, x, start = Outer(), torch.arange(5.0), torch.arange(5.0)
    recorded, result = trace(model, lambda: model(x))
    seen = recorded.tensors
    assert torch.equal(seen["inner:in[0]"], start), "a write in place must not reach what was recorded before it"
    assert torch.equal(seen["inner:out"], 2 * start)
    assert torch.equal(seen["inner#2:out"], 2 * (start + 1))
    hidden = 2 * start + 2 * (start + 1)
    assert torch.equal(seen["model:helper.value"], hidden)
    assert torch.equal(seen["model:helper.scaled"], 3 * hidden)
    assert torch.equal(seen["model:forward.hidden"], hidden + 100)
    assert torch.equal(seen["model:out"], 3 * hidden - 1)
    lines = {location: value for location, value in seen.items() if ".line " in location}
    assert any(torch.equal(value, result) and location.endswith(" sub") for location, value in lines.items())
    assert functions_called([recorded]) == ["helper(scale=3)"]
    assert sys.getprofile() is None


def test_trace_of_a_reference(exact):
    runner = ReferenceRunner(exact)
    with float64_arithmetic():
        recorded, (logits, cache) = trace(exact, lambda: runner.forward(IDS, use_cache=True))
    seen = recorded.tensors
    assert torch.equal(seen["lm_head:out"][0], logits)
    gate = seen["layers.0.self_attn.b_proj:out"]
    assert torch.equal(seen["layers.0.self_attn:forward.beta"], torch.sigmoid(gate))
    assert torch.equal(seen["layers.0.self_attn:chunk_kimi_delta_attention.beta"], torch.sigmoid(gate))
    state = seen["layers.0.self_attn:chunk_kimi_delta_attention.return[1]"]
    assert torch.equal(state, cache.layers[0].recurrent_states[0])
    call = next(c for c in recorded.calls if c.function == "chunk_kimi_delta_attention")
    assert call.arguments["chunk_size"] == 64 and call.arguments["use_qk_l2norm_in_kernel"] is True
    assert all(t.dtype != torch.float32 for t in seen.values())


@pytest.mark.parametrize("name", ["glm-5.3-flash", "qwen4-exp"])
def test_shrunk_full_size_model(root, name):
    config = full_size(root, name)
    small, notes = shrink_config(config)
    whole, text = config.get_text_config(), small.get_text_config()
    layers = text.num_hidden_layers
    assert set(whole.layer_types) == set(text.layer_types) and layers < 8
    assert text.layer_types == whole.layer_types[:layers]
    sizes = [
        value
        for field in dataclasses.fields(text)
        if field.name.endswith(("_dim", "_rank", "hidden_size", "intermediate_size"))
        and isinstance(value := getattr(text, field.name), int)
        and value > 16
    ]
    assert len(sizes) > 4 and len(set(sizes)) == len(sizes), "every axis must name its key"
    budget = getattr(text, "index_topk", None) or text.indexer_budget
    assert budget < PROMPT_TOKENS // 2
    model = build_reference(small)
    randomise(model, 0)
    assert sum(p.numel() for p in model.parameters()) < 5e6
    logits, _ = ReferenceRunner(model).forward(torch.arange(PROMPT_TOKENS) % 200)
    assert logits.isfinite().all() and logits.argmax(-1).unique().numel() > 20
    assert f"text: hidden_size {whole.hidden_size} -> {text.hidden_size}" in notes


def test_a_small_config_keeps_its_sizes(repo):
    config, _ = resolve_config(repo)
    small, notes = shrink_config(config)
    assert notes == []
    assert small.get_text_config().to_dict() == config.get_text_config().to_dict()


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        (dict(num_hidden_layers=9, kinds=["a"] * 3 + ["b"] * 6), 4),
        (dict(num_hidden_layers=9, kinds=["a"] * 9, first_k_dense_replace=3), 4),
        (dict(num_hidden_layers=9, ple_layer_ids=[2]), 3),
        (dict(num_hidden_layers=9, full_attention_interval=4), 4),
        (dict(num_hidden_layers=40, kinds=["a"] * 39 + ["b"]), 12),
        (dict(num_hidden_layers=1, kinds=["a"]), 1),
    ],
)
def test_covering_layers(values, layers):
    assert covering_layers(values) == layers


def test_random_weights_are_no_constants(root):
    small, _ = shrink_config(full_size(root, "glm-5.3-flash"))
    one, two = build_reference(small), build_reference(small)
    randomise(one, 4)
    randomise(two, 4)
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b), f"{name} does not follow from the seed"
        assert a.numel() == 1 or a.std() > 1e-3, f"{name} is constant"
    randomise(two, 5)
    assert not torch.equal(one.lm_head.weight, two.lm_head.weight)


def test_config_reads(repo):
    config, _ = resolve_config(repo)
    text = config.get_text_config()
    with watch_reads(config) as reads:
        model = build_reference(config)
        ReferenceRunner(model).forward(IDS, use_cache=True)
    read = reads.of(text)
    # num_local_experts is another name of n_routed_experts: reading it reads the key.
    assert {"hidden_size", "linear_lower_bound", "n_routed_experts", "hc_sinkhorn_iters"} <= read
    assert not {"qk_head_dim", "max_position_embeddings", "num_local_experts"} & read
    before = len(read)
    assert text.max_position_embeddings > 0
    assert len(reads.of(text)) == before, "reads after the watch count for nothing"
