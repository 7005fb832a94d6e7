"""moe: against a token-by-token formula, and against the families' modules, in float64."""

import math

import pytest
import torch

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.moe.reference import choices, moe, route
from day0.kernels.registry import get_kind
from tests.kernels.float64 import Float64Meaning

KIND = get_kind("moe")
# float64: nested sums of at most 7 products of size ~1, then a weighted sum of 3 experts: under 1000 ulp of 2.2e-16.
TOLERANCE = 1e-12

SIGMOID = dict(width=5, hidden=4, experts=12, top_k=3, scores="sigmoid", selection_bias=True, renormalise_eps=1e-20)
SOFTMAX = dict(width=5, hidden=4, experts=12, top_k=3, scores="softmax")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20)


def make(base, **changes):
    a = KIND.parse(base | changes)
    return a, {n: torch.randn(w.shape, dtype=torch.float64) for n, w in KIND.weights(a).items()}


def dot(w, v):
    return sum(float(p) * float(q) for p, q in zip(w, v, strict=True))


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def plain_route(a, x, owned):
    """(chosen experts best first, their weights) of one token, with Python floats and explicit sorting."""
    logits = [dot(w, x) for w in owned["router"]]
    if a.scores == "softmax":
        top = max(logits)
        total = sum(math.exp(z - top) for z in logits)
        scores = [math.exp(z - top) / total for z in logits]
    else:
        scores = [sigmoid(z) for z in logits]
    bias = owned["router_bias"].tolist() if a.selection_bias else [0.0] * a.experts
    choice = [s + b for s, b in zip(scores, bias, strict=True)]
    size = a.experts // a.groups
    worth = [sum(sorted(choice[g * size : (g + 1) * size])[-2:]) for g in range(a.groups)]
    kept = sorted(range(a.groups), key=lambda g: (-worth[g], g))[: a.groups_kept]
    allowed = [e for e in range(a.experts) if e // size in kept or a.groups == 1]
    chosen = sorted(allowed, key=lambda e: (-choice[e], e))[: a.top_k]
    total = sum(scores[e] for e in chosen) + a.renormalise_eps if a.renormalise else 1.0
    return chosen, [a.routed_scale * scores[e] / total for e in chosen]


def plain_expert(a, x, gate_up, down):
    hidden = down.shape[1]
    inner = []
    for h in range(hidden):
        gate, up = dot(gate_up[h], x), dot(gate_up[hidden + h], x)
        if a.clamp:
            gate, up = min(gate, a.clamp), min(max(up, -a.clamp), a.clamp)
        inner.append((gate * sigmoid(gate) if a.activation == "silu" else max(gate, 0.0) ** 2) * up)
    return [dot(row, inner) for row in down]


def plain(a, x, owned):
    y = torch.zeros_like(x)
    for n in range(x.shape[0]):
        for e, w in zip(*plain_route(a, x[n], owned), strict=True):
            y[n] += w * torch.tensor(plain_expert(a, x[n], owned["gate_up"][e], owned["down"][e]), dtype=x.dtype)
        if a.shared_hidden:
            part = torch.tensor(plain_expert(a, x[n], owned["shared_gate_up"], owned["shared_down"]), dtype=x.dtype)
            y[n] += part * (sigmoid(dot(owned["shared_gate"][0], x[n])) if a.shared_gate == "sigmoid" else 1.0)
    return y


@pytest.mark.parametrize("base", [SIGMOID, SOFTMAX], ids=["sigmoid", "softmax"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(selection_bias=False),
        dict(selection_bias=True, groups=4, groups_kept=2),
        dict(selection_bias=False, groups=3, groups_kept=1),
        dict(selection_bias=True, groups=2, groups_kept=1),
        dict(groups=4, groups_kept=2, top_k=5),
        dict(experts=4, groups=2, groups_kept=1, top_k=2),
        dict(experts=1, top_k=1),
        dict(renormalise=False, renormalise_eps=0.0, routed_scale=2.5),
        dict(renormalise_eps=0.3, routed_scale=1.7),
        dict(shared_hidden=7),
        dict(shared_hidden=7, shared_gate="sigmoid"),
        dict(clamp=0.5, shared_hidden=7),
        dict(activation="relu2", shared_hidden=7),
        dict(router_float32=False),
    ],
)
def test_formula(base, changes):
    a, owned = make(base, **changes)
    x = torch.randn(9, 5, dtype=torch.float64)
    assert (moe(a, x, **owned) - plain(a, x, owned)).abs().max() < TOLERANCE
    ids, weights, _ = route(a, x, owned["router"], owned.get("router_bias"))
    for n in range(9):
        chosen, want = plain_route(a, x[n], owned)
        assert ids[n].tolist() == chosen
        assert (weights[n] - torch.tensor(want, dtype=x.dtype)).abs().max() < TOLERANCE


def test_equal_scores_are_taken_in_index_order():
    a, owned = make(SIGMOID, experts=64, groups=8, groups_kept=2, top_k=3)
    owned["router"].zero_()
    owned["router_bias"].zero_()
    ids, weights, choice = route(a, torch.randn(1, 5, dtype=torch.float64), owned["router"], owned["router_bias"])
    assert ids.tolist() == [[0, 1, 2]]
    assert torch.equal(weights, torch.full_like(weights, 1 / 3))
    assert torch.isfinite(choice).sum() == 16


def test_choice_scores_tell_the_cut():
    a, owned = make(SIGMOID, groups=4, groups_kept=2)
    x = torch.randn(8, 5, dtype=torch.float64)
    ids, _, choice = route(a, x, owned["router"], owned["router_bias"])
    best = choice.topk(4, dim=-1)
    assert torch.equal(best.indices[:, :3], ids)
    scores = torch.sigmoid(x @ owned["router"].T) + owned["router_bias"]
    finite = torch.isfinite(choice)
    assert finite.sum(-1).tolist() == [6] * 8
    assert (choice - scores)[finite].abs().max() < TOLERANCE


@pytest.mark.parametrize("groups,kept", [(1, 1), (4, 2)])
def test_choices(groups, kept):
    a, owned = make(SIGMOID, groups=groups, groups_kept=kept, shared_hidden=7)
    x = torch.randn(8, 5, dtype=torch.float64)
    found = choices(a, x, **owned)
    assert set(found) == ({"experts", "groups"} if groups > 1 else {"experts"})
    ids, _, scores = route(a, x, owned["router"], owned["router_bias"])
    assert torch.equal(found["experts"].scores, scores) and found["experts"].kept == 3
    assert torch.equal(found["experts"].scores.topk(3).indices, ids)
    if groups > 1:
        assert found["groups"].kept == 2 and found["groups"].scores.shape == (8, 4)
        best = found["groups"].scores.topk(2).indices.sort().values.tolist()
        assert best == [sorted({e // 3 for e in row.isfinite().nonzero().flatten().tolist()}) for row in scores]


def test_router_precision_in_bfloat16():
    """float32 routing keeps more than the 8 bits that routing in the activation dtype keeps."""
    x, router = torch.randn(6, 64).bfloat16(), torch.randn(12, 64).bfloat16()
    for float32 in (True, False):
        a = KIND.parse(SOFTMAX | dict(width=64, router_float32=float32))
        weights = route(a, x, router)[1]
        logits = x.double() @ router.double().T
        if not float32:
            logits = torch.nn.functional.linear(x, router).double()
        want = torch.softmax(logits, -1).topk(3).values
        want = want / want.sum(-1, keepdim=True)
        assert weights.dtype == (torch.float32 if float32 else torch.bfloat16)
        # float32: 64 products summed, logits up to ~30; the relative error of exp is the absolute error of the logit:
        # 30 * 64 ulp of 6e-8; bfloat16: one rounding, 2^-8 of a value below 1
        assert (weights.double() - want).abs().max() < (1.2e-4 if float32 else 2**-8)


def test_weights_in_the_activation_dtype_are_rounded_after_a_float32_softmax():
    a = KIND.parse(SOFTMAX | dict(width=64, router_float32=False))
    x, router = torch.randn(50, 64).bfloat16(), torch.randn(12, 64).bfloat16() / 8
    best = torch.nn.functional.linear(x, router).float().softmax(-1).topk(3).values
    assert torch.equal(route(a, x, router)[1], (best / best.sum(-1, keepdim=True)).bfloat16())


def test_experts_weighted_in_the_activation_dtype_are_summed_in_float32():
    a = KIND.parse(SOFTMAX | dict(width=32, hidden=16, top_k=12, router_float32=False))
    owned = {n: torch.randn(w.shape).bfloat16() for n, w in KIND.weights(a).items()}
    x = torch.randn(20, 32).bfloat16()
    ids, weights, _ = route(a, x, owned["router"])
    want = torch.zeros(20, 32)
    for e in range(12):
        gate, up = torch.nn.functional.linear(x, owned["gate_up"][e]).chunk(2, dim=-1)
        out = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, owned["down"][e])
        want += (out * weights.gather(1, (ids == e).int().argmax(1, keepdim=True))).float()
    assert torch.equal(moe(a, x, **owned), want.bfloat16())


def test_sum_over_experts_is_rounded_once():
    a = KIND.parse(SIGMOID | dict(selection_bias=False, top_k=12, hidden=16, width=32))
    owned = {n: torch.randn(w.shape).bfloat16() for n, w in KIND.weights(a).items()}
    x = torch.randn(20, 32).bfloat16()
    ids, weights, _ = route(a, x, owned["router"])
    want = torch.zeros(20, 32)
    for n in range(20):
        for e in range(12):
            gate, up = torch.nn.functional.linear(x[n : n + 1], owned["gate_up"][e]).chunk(2, dim=-1)
            out = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, owned["down"][e])
            want[n] += (out.float() * weights[n, ids[n] == e])[0]
    got = moe(a, x, **owned)
    assert got.dtype == torch.bfloat16
    # one rounding to bfloat16, half an ulp = 2^-9 relative, and float32 sums in another order (12 terms up to ~100)
    assert ((got.float() - want).abs() <= want.abs() * 2**-8 + 12 * 100 * 2**-23).all()


FAMILIES = ["glm5_next", "kimi_linear", "deepseek_v32", "qwen3_next", "qwen4_exp"]


def family_block(family):
    """(attributes, the family's sparse block in float64) with small sizes."""
    if family in ("qwen3_next", "qwen4_exp"):
        from transformers.models.qwen3_next import configuration_qwen3_next, modeling_qwen3_next
        from transformers.models.qwen4_exp import configuration_qwen4_exp, modeling_qwen4_exp

        sizes = dict(
            hidden_size=5,
            moe_intermediate_size=4,
            num_experts=12,
            num_experts_per_tok=3,
            shared_expert_intermediate_size=7,
            norm_topk_prob=True,
        )
        if family == "qwen3_next":
            config = configuration_qwen3_next.Qwen3NextConfig(**sizes)
            block = modeling_qwen3_next.Qwen3NextSparseMoeBlock
        else:
            config = configuration_qwen4_exp.Qwen4ExpTextConfig(**sizes)
            block = modeling_qwen4_exp.Qwen4ExpTextSparseMoeBlock
        attributes = SOFTMAX | dict(router_float32=False, shared_hidden=7, shared_gate="sigmoid")
    else:
        from transformers.models.deepseek_v32 import configuration_deepseek_v32, modeling_deepseek_v32
        from transformers.models.glm5_next import configuration_glm5_next, modeling_glm5_next
        from transformers.models.kimi_linear import configuration_kimi_linear, modeling_kimi_linear

        sizes = dict(
            hidden_size=5,
            moe_intermediate_size=4,
            num_experts_per_tok=3,
            n_shared_experts=2,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
            norm_topk_prob=True,
        )
        attributes = SIGMOID | dict(groups=4, groups_kept=2, routed_scale=2.5, shared_hidden=8)
        if family == "glm5_next":
            config = configuration_glm5_next.Glm5NextTextConfig(**sizes, n_routed_experts=12, swiglu_limit=0.6)
            block = modeling_glm5_next.Glm5NextTextMoE
            attributes |= dict(clamp=0.6)
        elif family == "kimi_linear":
            config = configuration_kimi_linear.KimiLinearConfig(**sizes, num_local_experts=12)
            block = modeling_kimi_linear.KimiLinearMoE
        else:
            config = configuration_deepseek_v32.DeepseekV32Config(**sizes, n_routed_experts=12)
            block = modeling_deepseek_v32.DeepseekV32MoE
    config._experts_implementation = "eager"
    return KIND.parse(attributes), block(config).double()


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_module(family):
    a, theirs = family_block(family)
    owned = {n: torch.randn(w.shape, dtype=torch.float64) for n, w in KIND.weights(a).items()}
    gate, up = owned["shared_gate_up"].chunk(2)
    shared = "shared_expert" if a.shared_gate == "sigmoid" else "shared_experts"
    named = {
        "gate.weight": owned["router"],
        "experts.gate_up_proj": owned["gate_up"],
        "experts.down_proj": owned["down"],
        f"{shared}.gate_proj.weight": gate,
        f"{shared}.up_proj.weight": up,
        f"{shared}.down_proj.weight": owned["shared_down"],
    }
    if a.selection_bias:
        named["gate.e_score_correction_bias"] = owned["router_bias"]
    if a.shared_gate == "sigmoid":
        named["shared_expert_gate.weight"] = owned["shared_gate"]
    theirs.load_state_dict(named)
    x = torch.randn(1, 11, 5, dtype=torch.float64)
    with Float64Meaning():
        want = theirs(x)
    assert (moe(a, x[0], **owned) - want[0]).abs().max() < TOLERANCE


def test_cost():
    a = make(SIGMOID, shared_hidden=7, shared_gate="sigmoid")[0]
    always, expert = 12 * 5 + 3 * 7 * 5 + 5, 3 * 4 * 5
    one = KIND.cost(a, Work("decode", tokens=1, sequences=1, context=50, activation_bytes=2, weight_bytes=1))
    # a single token hits exactly top_k experts
    assert one.flops == 2 * (always + 3 * expert)
    assert one.bytes_read == pytest.approx(always + 3 * expert + 12 * 4 + 10)
    assert one.bytes_written == 10
    two = KIND.cost(a, Work("decode", tokens=2, sequences=2, context=50, activation_bytes=2, weight_bytes=1))
    # the second token adds the 3 it picks, of which 3/12 are already there
    assert two.bytes_read - one.bytes_read == pytest.approx(3 * (1 - 3 / 12) * expert + 10)
    many = KIND.cost(a, Work("prefill", tokens=10_000, sequences=1, context=0, activation_bytes=2, weight_bytes=1))
    assert many.bytes_read == pytest.approx(always + 12 * expert + 12 * 4 + 100_000)
    assert many.flops == pytest.approx(10_000 * one.flops)
    bare = KIND.cost(make(SOFTMAX)[0], Work("decode", tokens=1, sequences=1, context=0, weight_bytes=4))
    assert bare == Cost(2.0 * (60 + 3 * expert), pytest.approx(4 * (60 + 3 * expert) + 10), 10)


def test_weights_are_exactly_those_used():
    shapes = {n: (w.shape, w.dtype) for n, w in KIND.weights(KIND.parse(SOFTMAX)).items()}
    assert shapes == {
        "router": ((12, 5), "activation"),
        "gate_up": ((12, 8, 5), "activation"),
        "down": ((12, 5, 4), "activation"),
    }
    more = KIND.weights(KIND.parse(SIGMOID | dict(shared_hidden=7, shared_gate="sigmoid")))
    assert {n: (w.shape, w.dtype) for n, w in more.items() if n not in shapes} == {
        "router_bias": ((12,), "float32"),
        "shared_gate_up": ((14, 5), "activation"),
        "shared_down": ((5, 7), "activation"),
        "shared_gate": ((1, 5), "activation"),
    }


def test_contract_refuses_what_cannot_be():
    contract = KIND.implementation("torch").contract
    facts = dict(width=0, hidden=0, shared_hidden=-1, clamp=-1.0, renormalise_eps=-1.0)
    refused = contract.refusals({"attribute": facts, "dtype": {"activation": "int8"}})
    assert [r.clause for r in refused] == ["width", "hidden", "shared_hidden", "clamp", "renormalise_eps", "dtype"]
    facts = dict(width=1, hidden=1, shared_hidden=0, clamp=0.0, renormalise_eps=0.0)
    assert contract.refusals({"attribute": facts, "dtype": {"activation": "float16"}}) == []


@pytest.mark.parametrize(
    "changes,message",
    [
        (dict(groups=2, groups_kept=3), "groups_kept 3"),
        (dict(groups=2, groups_kept=0), "groups_kept 0"),
        (dict(groups=5, groups_kept=1), "do not divide"),
        (dict(groups=12, groups_kept=3), "needs two experts"),
        (dict(experts=2, groups=2, groups_kept=1, top_k=1), "needs two experts"),
        (dict(top_k=13), "outside 1..12"),
        (dict(groups=4, groups_kept=1, top_k=4), "outside 1..3"),
        (dict(top_k=0), "outside 1..12"),
        (dict(renormalise=False), "renormalise_eps"),
        (dict(shared_gate="sigmoid"), "shared expert"),
        (dict(scores="sqrtsoftplus"), "scores"),
        (dict(jitter=0.1), "jitter"),
    ],
)
def test_parse_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(SIGMOID | changes)


def test_alternatives_parse():
    for name, values in type(make(SOFTMAX)[0]).alternatives().items():
        for value in values:
            assert getattr(make(SOFTMAX, **{name: value})[0], name) == value
