"""recurrence: the mixers of known families are rows of one table, each equal to its transformers code in float64."""

import importlib
from types import SimpleNamespace

import pytest
import torch

from day0.kernels.registry import get_kind
from tests.kernels.test_recurrence import IMPLEMENTATIONS, draw, one, pool

KIND = get_kind("recurrence")
# float64; outputs and states of size ~1 to 10, over 37 tokens
TOLERANCE = 1e-12
LENGTH = 37

GATED_DELTA = dict(delta_rule=True, decay="per_head", decay_form="softplus", beta="sigmoid", qk_norm="l2")
KIMI_DELTA = dict(delta_rule=True, decay="per_channel", decay_form="softplus", beta="sigmoid", qk_norm="l2")
STATE_SPACE = dict(delta_rule=False, decay="per_head", decay_form="time_step", scale=1.0, skip=True)

FAMILY_ROWS = {
    "qwen3_next": GATED_DELTA | dict(key_heads=2, value_heads=4, key_dim=5, value_dim=3),
    "qwen3_5": GATED_DELTA | dict(key_heads=2, value_heads=4, key_dim=5, value_dim=3),
    "qwen4_exp": GATED_DELTA | dict(key_heads=2, value_heads=6, key_dim=5, value_dim=3),
    "olmo_hybrid": GATED_DELTA | dict(key_heads=3, value_heads=3, key_dim=4, value_dim=8, beta_scale=2.0),
    "kimi_linear": KIMI_DELTA | dict(key_heads=3, value_heads=3, key_dim=6, value_dim=6),
    "glm5_next": KIMI_DELTA
    | dict(key_heads=3, value_heads=3, key_dim=6, value_dim=6, decay_form="bounded_sigmoid", lower_bound=-5.0),
    "bailing_hybrid": KIMI_DELTA
    | dict(key_heads=3, value_heads=3, key_dim=6, value_dim=6, decay_form="bounded_sigmoid", lower_bound=-5.0),
    "bamba": STATE_SPACE | dict(key_heads=2, value_heads=6, key_dim=5, value_dim=4),
    "falcon_h1": STATE_SPACE | dict(key_heads=1, value_heads=4, key_dim=5, value_dim=4),
    "granitemoehybrid": STATE_SPACE | dict(key_heads=2, value_heads=4, key_dim=5, value_dim=4, time_step_max=0.9),
    "nemotron_h": STATE_SPACE | dict(key_heads=2, value_heads=4, key_dim=5, value_dim=4, time_step_min=0.6),
    "zamba2": STATE_SPACE | dict(key_heads=2, value_heads=4, key_dim=5, value_dim=4, time_step_min=0.6),
    "minimax": dict(delta_rule=False, decay="constant", scale=1.0, slope_scale=1 - 2 / (5 - 1 + 1e-5) + 1e-5)
    | dict(key_heads=4, value_heads=4, key_dim=6, value_dim=6),
}


def families(decay, delta_rule):
    """The rows of one algebra."""
    return [name for name, row in FAMILY_ROWS.items() if (row["decay"], row["delta_rule"]) == (decay, delta_rule)]


@pytest.fixture
def modeling(monkeypatch):
    """modeling(family): the family's transformers module, in which float32 casts are float64 casts."""
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda x, *args, **options: to(x, *(torch.float64 if v is torch.float32 else v for v in args), **options),
    )
    return lambda family: importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def case(family):
    a = KIND.parse(FAMILY_ROWS[family])
    owned, (ports,) = draw(a, [LENGTH], seed=len(family))
    generator = torch.Generator().manual_seed(7)
    state = torch.randn(a.value_heads, a.key_dim, a.value_dim, dtype=torch.float64, generator=generator)
    return a, owned, ports, state


def heads(x, count):
    """[N, count * d] -> [1, N, count, d]"""
    return x.reshape(1, x.shape[0], count, -1)


def check(a, owned, ports, state, want, want_state):
    """Both implementations give `want` [N, Hv * Dv] and `want_state` [Hv, Dk, Dv] from `state`."""
    for function in IMPLEMENTATIONS.values():
        memory = pool(a) if state is None else state[None].clone()
        o = function(a, *ports, **owned, batch=one(len(want), context=0 if state is None else 5), state=memory)
        assert (o - want).abs().max() < TOLERANCE
        assert (memory[0] - want_state).abs().max() < TOLERANCE


@pytest.mark.parametrize("family", families("per_head", delta_rule=True))
@pytest.mark.parametrize("form", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_gated_delta_rule(modeling, family, form):
    a, owned, ports, state = case(family)
    q, k, v, f, b = ports
    g = -owned["A_log"].exp() * torch.nn.functional.softplus(f + owned["dt_bias"])
    beta = b.sigmoid() * (2.0 if family == "olmo_hybrid" else 1.0)
    want, want_state = getattr(modeling(family), form)(
        heads(q, a.key_heads),
        heads(k, a.key_heads),
        heads(v, a.value_heads),
        g=g[None],
        beta=beta[None],
        initial_state=state[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    check(a, owned, ports, state, want[0].flatten(1), want_state[0])


@pytest.mark.parametrize("family", families("per_channel", delta_rule=True))
@pytest.mark.parametrize("form", ["recurrent_kimi_delta_attention", "chunk_kimi_delta_attention"])
def test_kimi_delta_attention(modeling, family, form):
    a, owned, ports, state = case(family)
    q, k, v, f, b = ports
    module = modeling(family)
    # The forget gate is the family's own module, its projections replaced by the identity.
    config = SimpleNamespace(
        linear_head_dim=a.key_dim,
        linear_num_heads=a.value_heads,
        hidden_size=a.decay_width,
        linear_lower_bound=a.lower_bound,
        kda_safe_gate=True,
        kda_lower_bound=a.lower_bound,
    )
    (gate_class,) = (member for name, member in vars(module).items() if name.endswith("ForgetGate"))
    gate = gate_class(config).double()
    for name in ("f_a_proj", "f_b_proj", "f_proj"):
        if hasattr(gate, name):
            setattr(gate, name, torch.nn.Identity())
    with torch.no_grad():
        gate.A_log.copy_(owned["A_log"].reshape(gate.A_log.shape))
        gate.dt_bias.copy_(owned["dt_bias"])
        want, want_state = getattr(module, form)(
            heads(q, a.key_heads),
            heads(k, a.key_heads),
            heads(v, a.value_heads),
            g=gate(f[None]),
            beta=b.sigmoid()[None],
            initial_state=state[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
    check(a, owned, ports, state, want[0].flatten(1), want_state[0])


@pytest.mark.parametrize("family", families("per_head", delta_rule=False))
def test_state_space_scan(modeling, family):
    a, owned, ports, state = case(family)
    q, k, v, f, _ = ports
    want, want_state = modeling(family).mamba2_chunk_scan(
        heads(v, a.value_heads),
        f[None],
        -owned["A_log"].exp(),
        heads(k, a.key_heads),
        heads(q, a.key_heads),
        chunk_size=16,
        D=owned["D"],
        dt_bias=owned["dt_bias"],
        initial_states=state.mT[None],
        dt_softplus=True,
        dt_limit=(a.time_step_min, float("inf") if a.time_step_max is None else a.time_step_max),
        return_final_states=True,
    )
    check(a, owned, ports, state, want[0].flatten(1), want_state[0].mT)


def test_state_space_token_step(modeling):
    """One token of the families without a floor on the time step: their update leaves the limits out."""
    a, owned, ports, state = case("bamba")
    q, k, v, f, _ = ports = tuple(None if p is None else p[:1] for p in ports)
    width = a.value_dim
    after = state.mT[None].clone()
    want = modeling("bamba").mamba2_selective_state_update(
        after,
        v.reshape(1, a.value_heads, width),
        f[..., None].expand(-1, -1, width),
        -owned["A_log"].exp()[:, None, None].expand(-1, width, a.key_dim),
        k.reshape(1, a.key_heads, a.key_dim),
        q.reshape(1, a.key_heads, a.key_dim),
        owned["D"][:, None].expand(-1, width),
        dt_bias=owned["dt_bias"][:, None].expand(-1, width),
        dt_softplus=True,
    )
    check(a, owned, ports, state, want.flatten(1), after[0].mT)


@pytest.mark.parametrize("family", families("constant", delta_rule=False))
@pytest.mark.parametrize("cached", [False, True])
def test_lightning_attention(modeling, family, cached):
    a, owned, ports, state = case(family)
    q, k, v, _, _ = ports
    module = modeling(family)
    width = a.value_heads * a.value_dim
    config = SimpleNamespace(
        head_dim=a.key_dim,
        hidden_size=3 * width,
        num_attention_heads=a.value_heads,
        num_hidden_layers=5,
        block_size=16,
        hidden_act="linear",
        layer_types=["linear_attention"] * 5,
    )
    torch.set_default_dtype(torch.float64)
    try:
        mixer = module.MiniMaxLightningAttention(config, layer_idx=2)
    finally:
        torch.set_default_dtype(torch.float32)
    mixer.qkv_proj = torch.nn.Identity()
    inner = []
    mixer.norm.register_forward_pre_hook(lambda norm, args: inner.append(args[0]))
    cache = SimpleNamespace(
        get_linear_cache=lambda layer: state[None] if cached else None, set_linear_cache=lambda layer, s: None
    )
    packed = torch.cat([heads(x, a.value_heads) for x in (q, k, v)], dim=-1).flatten(2)
    with torch.no_grad():
        _, want_state = mixer(packed, None, None, past_key_values=cache)
    check(a, owned, ports, state if cached else None, inner[0][0], want_state[0])
