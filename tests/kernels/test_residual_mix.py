"""residual_mix: each scheme against a formula per token and per element, and against the families' modules."""

import math
from types import SimpleNamespace

import pytest
import torch

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.registry import get_kind, resolve
from day0.kernels.residual_mix.gated_streams import normed_streams
from day0.kernels.residual_mix.mhc import sinkhorn
from tests.kernels.float64 import Float64Meaning

KIND = get_kind("residual_mix")
# float64: sums of at most 20 products of size ~1, gates in [0, 2], 20 Sinkhorn steps that damp errors: < 1000 ulp.
TOLERANCE = 1e-12

ADD = dict(scheme="add", width=5)
MHC = dict(scheme="mhc", width=5, streams=4, norm_eps=1e-2, sinkhorn_iterations=3, mix_eps=1e-2)
MHC_ENDS = dict(scheme="mhc", role="boundary", width=5, streams=4)
GATED = dict(scheme="gated_streams", width=5, streams=3, norm_eps=1e-2, rank=2)
GATED_ENDS = GATED | dict(role="boundary")
ATTENTION = dict(scheme="attention", width=5, sources=4, norm_eps=1e-2)
ATTENTION_ENDS = ATTENTION | dict(role="boundary")

add, expand, pre, post, collapse = (
    resolve("residual_mix", "torch", m) for m in ("", "expand", "pre", "post", "collapse")
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(22)


def make(base, **changes):
    a = KIND.parse(base | changes)
    return a, {n: torch.randn(w.shape, dtype=torch.float64) for n, w in KIND.weights(a).items()}


def stream(a, tokens=6):
    return torch.randn(tokens, a.sources or a.streams, a.width, dtype=torch.float64)


def branch_output(a, tokens=6):
    return torch.randn(tokens, a.width, dtype=torch.float64)


def dot(w, v):
    return sum(float(p) * float(q) for p, q in zip(w, v, strict=True))


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def rms(v, eps):
    root = math.sqrt(sum(float(p) ** 2 for p in v) / len(v) + eps)
    return [float(p) / root for p in v]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


# --- add ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [1.0, 0.0, 2.0])
def test_add(multiplier):
    a, owned = make(ADD, multiplier=multiplier)
    assert owned == {}
    h, y = branch_output(a), branch_output(a)
    for got, p, q in zip(add(a, h, y).flatten(), h.flatten(), y.flatten(), strict=True):
        assert abs(float(got) - (float(p) + multiplier * float(q))) < TOLERANCE


# --- mhc ---------------------------------------------------------------------------------------------------------


def plain_mhc_gates(a, h, owned):
    """(pre, post, mixing) of one token, with Python floats."""
    s, eps = a.streams, a.mix_eps
    u = [dot(row, rms(h.flatten().tolist(), a.norm_eps)) for row in owned["fn"]]
    base, scale = owned["base"].tolist(), owned["scale"].tolist()
    into = [sigmoid(scale[0] * u[i] + base[i]) + eps for i in range(s)]
    out = [2 * sigmoid(scale[1] * u[s + i] + base[s + i]) for i in range(s)]
    m = [[scale[2] * u[2 * s + i * s + j] + base[2 * s + i * s + j] for j in range(s)] for i in range(s)]
    for i in range(s):
        total = sum(math.exp(z) for z in m[i])
        m[i] = [math.exp(z) / total + eps for z in m[i]]
    for iteration in range(a.sinkhorn_iterations):
        if iteration > 0:
            for i in range(s):
                total = sum(m[i]) + eps
                m[i] = [z / total for z in m[i]]
        totals = [sum(m[i][j] for i in range(s)) + eps for j in range(s)]
        m = [[m[i][j] / totals[j] for j in range(s)] for i in range(s)]
    return into, out, m


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("mix_eps", [0.0, 1e-2])
@pytest.mark.parametrize("streams", [2, 4])
def test_mhc(iterations, mix_eps, streams):
    a, owned = make(MHC, sinkhorn_iterations=iterations, mix_eps=mix_eps, streams=streams)
    h, y = stream(a), branch_output(a)
    x, mix = pre(a, h, **owned)
    after = post(a, h, y, mix, **owned)
    for n in range(6):
        into, out, m = plain_mhc_gates(a, h[n], owned)
        want = sum(into[i] * h[n, i] for i in range(streams))
        assert (x[n] - want).abs().max() < TOLERANCE
        assert (mix[0][n] - tensor(out)).abs().max() < TOLERANCE
        assert (mix[1][n] - tensor(m)).abs().max() < TOLERANCE
        for i in range(streams):
            want = out[i] * y[n] + sum(m[j][i] * h[n, j] for j in range(streams))
            assert (after[n, i] - want).abs().max() < TOLERANCE


def test_sinkhorn_ends_on_columns_and_nears_doubly_stochastic():
    m = sinkhorn(torch.randn(7, 4, 4, dtype=torch.float64), 40, 0.0)
    # the last step divides columns by their sums: exact up to 4 roundings
    assert (m.sum(-2) - 1).abs().max() < 4 * 2.3e-16
    # 40 alternations of a positive 4x4 matrix with entries exp(+-3): contraction below 0.9 a step
    assert (m.sum(-1) - 1).abs().max() < 0.9**40


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_mhc_ends(how):
    a, owned = make(MHC_ENDS, collapse=how)
    assert owned == {}
    x = branch_output(a)
    h = expand(a, x)
    assert h.shape == (6, 4, 5)
    assert all(torch.equal(h[:, s], x) for s in range(4))
    h = stream(a)
    want = (h[:, 0] + h[:, 1] + h[:, 2] + h[:, 3]) / (4 if how == "mean" else 1)
    assert (collapse(a, h) - want).abs().max() < TOLERANCE


def test_expanded_streams_do_not_share_memory():
    a, _ = make(MHC_ENDS)
    h = expand(a, branch_output(a))
    h[0, 0, 0] = 7.0
    assert h[0, 1, 0] != 7.0


def test_mhc_is_that_of_glm5_next():
    from transformers.models.glm5_next import modeling_glm5_next as theirs

    config = SimpleNamespace(hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-5, hidden_size=5)
    module = theirs.Glm5NextTextHyperConnection(config).double()
    a, owned = make(MHC, sinkhorn_iterations=20, mix_eps=1e-6, norm_eps=1e-5)
    module.load_state_dict(owned)
    h, y = stream(a), branch_output(a)
    with Float64Meaning():
        out, mixing, want = module(h[None])
        # the decoder layer's own line after the branch
        after = out.unsqueeze(-1) * y[None].unsqueeze(-2) + torch.matmul(mixing.transpose(-1, -2), h[None])
    x, mix = pre(a, h, **owned)
    assert (x - want[0]).abs().max() < TOLERANCE
    assert (mix[0] - out[0]).abs().max() < TOLERANCE and (mix[1] - mixing[0]).abs().max() < TOLERANCE
    assert (post(a, h, y, mix, **owned) - after[0]).abs().max() < TOLERANCE
    ends, _ = make(MHC_ENDS)
    assert torch.equal(collapse(ends, h), theirs.Glm5NextTextHyperHead()(h[None])[0])


# --- gated streams -----------------------------------------------------------------------------------------------


def plain_gated(a, h, owned):
    """(branch input, normed streams as one vector) of one token, with Python floats."""
    n = [v for s in range(a.streams) for v in rms(h[s].tolist(), a.norm_eps)]
    n = [v * (1 + w) for v, w in zip(n, owned["norm"].tolist(), strict=True)]
    inner = [dot(row, n) / a.streams for row in owned["down"]]
    inner = [z * sigmoid(z) for z in inner]
    gate = [sigmoid(dot(row, inner)) for row in owned["up"]]
    x = [sum(gate[s * a.width + c] * n[s * a.width + c] for s in range(a.streams)) for c in range(a.width)]
    return [v / a.streams for v in x], n


@pytest.mark.parametrize("streams,rank", [(3, 2), (4, 3)])
def test_gated_streams(streams, rank):
    a, owned = make(GATED, streams=streams, rank=rank)
    h, y = stream(a), branch_output(a)
    x, mix = pre(a, h, **owned)
    after = post(a, h, y, mix, **owned)
    for n in range(6):
        want, normed = plain_gated(a, h[n], owned)
        assert (x[n] - tensor(want)).abs().max() < TOLERANCE
        for s in range(streams):
            gate = 2 * sigmoid(dot(owned["inject"][s], normed) / streams)
            assert abs(float(mix[n, s]) - gate) < TOLERANCE
            assert (after[n, s] - (h[n, s] + gate * y[n])).abs().max() < TOLERANCE


def test_gated_ends():
    a, owned = make(GATED_ENDS)
    assert set(owned) == {"norm", "down", "up"}
    h = stream(a)
    x = collapse(a, h, **owned)
    for n in range(6):
        assert (x[n] - tensor(plain_gated(a, h[n], owned)[0])).abs().max() < TOLERANCE
    assert torch.equal(expand(a, x, **owned), torch.stack([x, x, x], dim=1))


def test_gated_streams_are_those_of_qwen4_exp():
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextGatedResidual

    config = SimpleNamespace(hc_count=3, hidden_size=5, hc_lowrank=2, rms_norm_eps=1e-6)
    a, owned = make(GATED, norm_eps=1e-6)
    names = dict(
        norm="hc_norm.weight",
        down="input_mix_weight_down.weight",
        up="input_mix_weight_up.weight",
        inject="block_inject_weight.weight",
    )
    module = Qwen4ExpTextGatedResidual(config).double()
    module.load_state_dict({names[n]: w for n, w in owned.items()})
    h, y = stream(a), branch_output(a)
    with Float64Meaning():
        want, streams, injection = module(h.flatten(-2)[None])
    x, mix = pre(a, h, **owned)
    assert (x - want[0]).abs().max() < TOLERANCE
    assert (mix - injection[0]).abs().max() < TOLERANCE
    # the decoder layer's own line after the branch
    after = streams + (y[None].unsqueeze(-2) * injection.unsqueeze(-1)).flatten(-2)
    assert (post(a, h, y, mix, **owned).flatten(-2) - after[0]).abs().max() < TOLERANCE

    final = Qwen4ExpTextGatedResidual(config, use_combine=False).double()
    end, owned = make(GATED_ENDS, norm_eps=1e-6)
    final.load_state_dict({names[n]: w for n, w in owned.items()})
    with Float64Meaning():
        want = final(h.flatten(-2)[None])[0]
    assert (collapse(end, h, **owned) - want).abs().max() < TOLERANCE


# --- attention residuals -----------------------------------------------------------------------------------------


def plain_attention(a, h, owned):
    """(mixture, probabilities) of one token, with Python floats."""
    normed = [rms(source.tolist(), a.norm_eps) for source in h]
    weight = owned["key_weight"].tolist() if a.weighted_keys else [1.0] * a.width
    keys = [[k * w for k, w in zip(key, weight, strict=True)] for key in normed]
    scores = [math.exp(a.scale * dot(owned["query"], key)) for key in keys]
    p = [s / sum(scores) for s in scores]
    values = h.tolist() if a.values == "raw" else normed
    return [sum(p[s] * values[s][c] for s in range(a.sources)) for c in range(a.width)], p


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("weighted_keys", [False, True])
@pytest.mark.parametrize("values", ["raw", "normed"])
@pytest.mark.parametrize("sources", [1, 4])
def test_attention(scale, weighted_keys, values, sources):
    changes = dict(scale=scale, weighted_keys=weighted_keys, values=values, sources=sources)
    a, owned = make(ATTENTION, **changes)
    h = stream(a)
    x, mix = pre(a, h, **owned)
    end, _ = make(ATTENTION_ENDS, **changes)
    assert torch.equal(collapse(end, h, **owned), x)
    for n in range(6):
        want, p = plain_attention(a, h[n], owned)
        assert (x[n] - tensor(want)).abs().max() < TOLERANCE
        assert (mix[n] - tensor(p)).abs().max() < TOLERANCE


def test_attention_adds_to_the_last_source_or_opens_another():
    a, owned = make(ATTENTION)
    h, y = stream(a), branch_output(a)
    _, mix = pre(a, h, **owned)
    before = h.clone()
    after = post(a, h, y, mix, **owned)
    assert torch.equal(h, before)
    assert torch.equal(after[:, :3], h[:, :3])
    assert torch.equal(after[:, 3], h[:, 3] + y)
    opening, _ = make(ATTENTION, opens_block=True)
    after = post(opening, h, y, mix, **owned)
    assert torch.equal(after[:, :4], h)
    assert torch.equal(after[:, 4], y)


def test_attention_begins_with_one_source():
    a, owned = make(ATTENTION_ENDS, sources=3, weighted_keys=True)
    x = branch_output(a)
    assert torch.equal(expand(a, x, **owned), x[:, None])


def test_attention_refuses_another_number_of_sources():
    a, owned = make(ATTENTION)
    with pytest.raises(ValueError, match="stream has 5 sources, the operator reads 4"):
        pre(a, torch.randn(2, 5, 5, dtype=torch.float64), **owned)


def test_block_attention_residuals_are_those_of_inkling2():
    """Two layers as Inkling2SlidingDecoderLayer wires them: blocks open at the first branch of layers 0 and 1."""
    from transformers.models.inkling2.modeling_inkling2 import Inkling2BlockAttentionResidual

    width, queries = 5, torch.randn(4, 5, dtype=torch.float64)
    ys = torch.randn(4, 6, width, dtype=torch.float64)
    embedding = torch.randn(6, width, dtype=torch.float64)

    def theirs(query, blocks, partial):
        module = Inkling2BlockAttentionResidual(SimpleNamespace(hidden_size=width)).double()
        module.load_state_dict({"query": query})
        with Float64Meaning():
            return module(torch.stack(blocks, dim=-2), partial)[0]

    shared = dict(norm_eps=1e-6, scale=width**-0.5, values="normed")

    def ours(query, h, y, opens):
        a, _ = make(ATTENTION, sources=h.shape[1], opens_block=opens, **shared)
        x, mix = pre(a, h, query=query)
        return x, post(a, h, y, mix, query=query)

    ends, _ = make(ATTENTION_ENDS, sources=3, **shared)
    h = expand(ends, embedding)
    blocks, partial = [], embedding
    for step in range(4):
        if blocks:
            want = theirs(queries[step], blocks, partial)
        x, h = ours(queries[step], h, ys[step], opens=step % 2 == 0)
        if step > 0:
            assert (x - want).abs().max() < TOLERANCE
        if step % 2 == 0:
            blocks, partial = [*blocks, partial], ys[step]
        else:
            partial = partial + ys[step]
    want = theirs(queries[0], blocks, partial)
    assert (collapse(ends, h, query=queries[0]) - want).abs().max() < TOLERANCE


# --- what all share ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [MHC, GATED, ATTENTION], ids=lambda b: b["scheme"])
def test_bfloat16_keeps_its_dtype_and_nears_float64(base):
    a, owned = make(base, width=64)
    owned = {n: (w * 0.1).bfloat16() for n, w in owned.items()}
    h, y = stream(a).bfloat16(), branch_output(a).bfloat16()
    x, mix = pre(a, h, **owned)
    after = post(a, h, y, mix, **owned)
    exact = {n: w.double() for n, w in owned.items()}
    want, exact_mix = pre(a, h.double(), **exact)
    want_after = post(a, h.double(), y.double(), exact_mix, **exact)
    assert x.dtype == after.dtype == torch.bfloat16
    # one rounding to bfloat16, 2^-8 of the value, after float32 sums; gated_streams also rounds its normed streams and
    # gates on the way: 8 roundings of values no larger than the largest normed channel
    largest = 0.0 if base is not GATED else float(h.double().abs().max()) * 2
    for got, exactly in ((x, want), (after, want_after)):
        assert ((got.double() - exactly).abs() <= exactly.abs() * 2**-8 + 1e-5 + 8 * 2**-8 * largest).all()
    if base is MHC:
        assert {m.dtype for m in mix} == {torch.float32}


METHODS = [
    (ADD, {""}),
    (MHC, {"pre", "post"}),
    (MHC_ENDS, {"expand", "collapse"}),
    (GATED, {"pre", "post"}),
    (GATED_ENDS, {"expand", "collapse"}),
    (ATTENTION, {"pre", "post"}),
    (ATTENTION_ENDS, {"expand", "collapse"}),
]


def test_gated_streams_round_their_normed_streams_once():
    """In bfloat16, to the bit: the norm in float32 with a float32 1 + weight."""
    a, owned = make(GATED)
    h, weight = stream(a).bfloat16(), owned["norm"].bfloat16()
    root = torch.rsqrt(h.float().square().mean(-1, keepdim=True) + 1e-2)
    want = ((h.float() * root).flatten(1) * (1.0 + weight.float())).bfloat16()
    assert torch.equal(normed_streams(a, h, weight), want)


@pytest.mark.parametrize("base,has", METHODS)
def test_methods_follow_scheme_and_role(base, has):
    a, _ = make(base)
    names = {"": ("h",), "expand": ("h",), "pre": ("x", "mix"), "post": ("h",), "collapse": ("x",)}
    ports = {"": 2, "expand": 1, "pre": 1, "post": 3, "collapse": 1}
    for name, method in KIND.methods.items():
        assert len(method.inputs) == ports[name]
        if name in has:
            assert method.output_names(a) == names[name]
            continue
        known = ", ".join(n or '""' for n in KIND.methods if n in has)
        message = f"scheme {a.scheme}, role {a.role} has no method '{name}'; it has {known}$"
        with pytest.raises(ValueError, match=message):
            method.output_names(a)
        with pytest.raises(AssertionError, match="has no method"):
            resolve("residual_mix", "torch", name)(a, *[torch.zeros(2, 4, 5)] * ports[name])


@pytest.mark.parametrize(
    "base,shapes",
    [
        (ADD, {}),
        (MHC, dict(fn=(24, 20), base=(24,), scale=(3,))),
        (MHC_ENDS, {}),
        (GATED, dict(norm=(15,), down=(2, 15), up=(15, 2), inject=(3, 15))),
        (GATED_ENDS, dict(norm=(15,), down=(2, 15), up=(15, 2))),
        (ATTENTION, dict(query=(5,))),
        (ATTENTION | dict(weighted_keys=True), dict(query=(5,), key_weight=(5,))),
        (ATTENTION_ENDS | dict(weighted_keys=True), dict(query=(5,), key_weight=(5,))),
    ],
)
def test_weights(base, shapes):
    owned = KIND.weights(KIND.parse(base))
    assert {n: w.shape for n, w in owned.items()} == shapes
    assert [n for n, w in owned.items() if w.dtype == "float32"] == (["base", "scale"] if base is MHC else [])


@pytest.mark.parametrize(
    "base,changes,message",
    [
        (ADD, dict(role="boundary"), "only branch operators"),
        (ADD, dict(streams=4), "does not use streams"),
        (ADD, dict(scheme="sum"), "scheme"),
        (MHC, dict(streams=0), "needs streams > 0"),
        (MHC, dict(norm_eps=0.0), "needs norm_eps > 0"),
        (MHC, dict(sinkhorn_iterations=0), "needs sinkhorn_iterations > 0"),
        (MHC, dict(rank=3), "does not use rank"),
        (MHC, dict(collapse="sum"), "does not use collapse"),
        (MHC, dict(multiplier=0.5), "does not use multiplier"),
        (MHC_ENDS, dict(mix_eps=1e-6), "does not use mix_eps"),
        (GATED, dict(rank=0), "needs rank > 0"),
        (GATED, dict(scale=0.5), "does not use scale"),
        (ATTENTION, dict(sources=0), "needs sources > 0"),
        (ATTENTION, dict(collapse="sum"), "does not use collapse"),
        (ATTENTION_ENDS, dict(opens_block=True), "does not use opens_block"),
        (ATTENTION, dict(values="scaled"), "values"),
        (ATTENTION, dict(eps=1e-6), "eps"),
    ],
)
def test_parse_refuses(base, changes, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(base | changes)


def test_alternatives_are_values_of_the_schema():
    uses = dict(multiplier=ADD, norm_eps=MHC, sinkhorn_iterations=MHC, mix_eps=MHC, collapse=MHC_ENDS)
    for name, values in KIND.attributes.alternatives().items():
        base = uses.get(name, ATTENTION)
        for value in values:
            assert KIND.weights(KIND.parse(base | {name: value})) == KIND.weights(KIND.parse(base))


WORK = Work("decode", tokens=7, sequences=7, context=9, activation_bytes=2, weight_bytes=1)


@pytest.mark.parametrize(
    "base,flops,owned,read,written",
    [
        (ADD, 5, 0, 2 * 10, 10),
        (ADD | dict(multiplier=0.5), 10, 0, 2 * 10, 10),
        # 20 channels: norm 3, 24 products, weighted sum 2; Sinkhorn 3 x 4 x 16; post 20 mix entries over 5 channels
        (MHC, 20 * (3 + 48 + 2) + 3 * 64 + 2 * 20 * 5, 480 + 27 * 4, 9 * 10 + 80, 5 * 10 + 80),
        (MHC_ENDS, 20, 0, 5 * 10, 5 * 10),
        # 15 channels: norm 4, gate 6, products of rank 2 down and up and 3 injections; post 3 x 5 multiply-adds
        (GATED, 15 * 10 + 2 * (60 + 45) + 30, 15 + 60 + 45, 7 * 10 + 6, 4 * 10 + 6),
        (GATED_ENDS, 15 * 10 + 2 * 60, 15 + 60, 4 * 10, 4 * 10),
        # 20 channels: norm 3, score 2, mixture 2; post adds 5
        (ATTENTION, 20 * 7 + 5, 5, 6 * 10, 2 * 10),
        (ATTENTION | dict(opens_block=True, weighted_keys=True), 20 * 8, 10, 5 * 10, 2 * 10),
        (ATTENTION_ENDS, 20 * 7, 5, 5 * 10, 2 * 10),
    ],
)
def test_cost(base, flops, owned, read, written):
    a = KIND.parse(base)
    assert KIND.cost(a, WORK) == Cost(7 * flops, owned + 7 * read, 7 * written)


def test_contract_refuses_what_cannot_be():
    contract = KIND.implementation("torch").contract
    refused = contract.refusals({"attribute": dict(width=0, mix_eps=-1.0), "dtype": {"activation": "int8"}})
    assert [r.clause for r in refused] == ["width", "mix_eps", "dtype"]
    facts = KIND.parse(MHC).model_dump()
    assert (
        contract.refusals({"attribute": facts | dict(width=1, mix_eps=0.0), "dtype": {"activation": "float64"}}) == []
    )
