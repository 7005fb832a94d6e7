"""recurrence: against the formula per element, and over every way to cut and pack sequences."""

import itertools
import math
from functools import partial

import pytest
import torch

from day0.kernels.interface.batch import Batch
from day0.kernels.interface.kind import Cost, Work
from day0.kernels.recurrence import chunked, reference
from day0.kernels.registry import get_kind
from tests.kernels.steps import run_steps

KIND = get_kind("recurrence")
SIZES = dict(key_heads=2, value_heads=4, key_dim=3, value_dim=2)
# float64; a few tens of operations on values of size ~1 to 10, carried over a few tokens
TOLERANCE = 1e-13
DECAYS = [
    ("none", "softplus"),
    ("constant", "softplus"),
    *itertools.product(["per_head"], ["softplus", "bounded_sigmoid", "given", "time_step"]),
    *itertools.product(["per_channel"], ["softplus", "bounded_sigmoid", "given"]),
]
IMPLEMENTATIONS = {"torch": reference.recurrence, "torch_chunked": chunked.recurrence}


def draw(a, lengths, seed=0, dtype=torch.float64):
    """Weights, and for each sequence its ports (q, k, v, decay, beta)."""
    generator = torch.Generator().manual_seed(seed)
    randn = partial(torch.randn, dtype=torch.float64, generator=generator)
    owned = {name: randn(w.shape) for name, w in KIND.weights(a).items()}
    sequences = []
    for n in lengths:
        q, k = randn(2, n, a.key_heads * a.key_dim).to(dtype)
        v = randn(n, a.value_heads * a.value_dim).to(dtype)
        decay = randn(n, a.decay_width) * 2 if a.decay_width else None
        if decay is not None and a.decay_form == "given":
            decay = -decay.abs()
        beta = randn(n, a.value_heads) if a.beta != "none" else None
        sequences.append((q, k, v, *(None if t is None else t.to(dtype) for t in (decay, beta))))
    return owned, sequences


def pool(a, slots=1, dtype=torch.float64):
    (component,) = KIND.components(a)
    return torch.full((slots, *component.shape), float("nan"), dtype=dtype)


def one(n, context=0):
    return Batch.pack([[0] * n], context_lens=[context], slots=[0], pages=[[]])


def plain(a, q, k, v, decay, beta, weights, s):
    """One element at a time, with Python floats; `s` [Hv][Dk][Dv] is updated in place."""
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731
    o = torch.empty_like(v)
    for t, h in itertools.product(range(v.shape[0]), range(a.value_heads)):
        kh = h * a.key_heads // a.value_heads
        qt, kt = ([float(x[t, kh * a.key_dim + d]) for d in range(a.key_dim)] for x in (q, k))
        if a.qk_norm == "l2":
            qt, kt = ([x / math.sqrt(sum(y * y for y in xs) + a.qk_norm_eps) for x in xs] for xs in (qt, kt))
        scale = 1 / math.sqrt(a.key_dim) if a.scale is None else a.scale
        vt = [float(v[t, h * a.value_dim + e]) for e in range(a.value_dim)]
        step = 1.0
        for d in range(a.key_dim):
            g = 0.0
            if a.decay == "constant":
                g = -a.slope_scale / 2 ** (8 * (h + 1) / a.value_heads)
            elif a.decay != "none":
                c = h if a.decay == "per_head" else h * a.key_dim + d
                f = float(decay[t, c])
                if a.decay_form == "given":
                    g = f
                else:
                    rate, f = math.exp(float(weights["A_log"][h])), f + float(weights["dt_bias"][c])
                    if a.decay_form == "bounded_sigmoid":
                        g = a.lower_bound * sigmoid(rate * f)
                    else:
                        step = math.log1p(math.exp(f))
                        if a.decay_form == "time_step":
                            step = min(max(step, a.time_step_min), a.time_step_max or math.inf)
                        g = -rate * step
            for e in range(a.value_dim):
                s[h][d][e] *= math.exp(g)
        b = 1.0 if beta is None else float(beta[t, h])
        if a.beta == "sigmoid":
            b = a.beta_scale * sigmoid(b)
        for e in range(a.value_dim):
            u = vt[e] * (step if a.decay_form == "time_step" and a.decay_width else 1.0)
            if a.delta_rule:
                u -= sum(kt[d] * s[h][d][e] for d in range(a.key_dim))
            for d in range(a.key_dim):
                s[h][d][e] += kt[d] * b * u
            y = sum(qt[d] * scale * s[h][d][e] for d in range(a.key_dim))
            o[t, h * a.value_dim + e] = y + (float(weights["D"][h]) * vt[e] if a.skip else 0.0)
    return o


@pytest.mark.parametrize("delta_rule", [False, True])
@pytest.mark.parametrize("decay,decay_form", DECAYS)
@pytest.mark.parametrize(
    "beta,more",
    [
        ("none", dict(qk_norm="l2", qk_norm_eps=0.3, time_step_min=0.4, time_step_max=0.9)),
        ("sigmoid", dict(scale=0.7, skip=True, beta_scale=1.7, lower_bound=-0.5)),
        ("given", dict(scale=1.0, slope_scale=0.3, qk_norm="l2")),
    ],
    ids=["beta none", "beta sigmoid", "beta given"],
)
def test_formula_and_final_state_from_an_earlier_state(delta_rule, decay, decay_form, beta, more):
    a = KIND.parse(SIZES | dict(delta_rule=delta_rule, decay=decay, decay_form=decay_form, beta=beta) | more)
    owned, (ports,) = draw(a, [5])
    state = torch.randn(1, 4, 3, 2, dtype=torch.float64)
    expected_state = state[0].tolist()
    want = plain(a, *ports, owned, expected_state)
    final = torch.tensor(expected_state, dtype=torch.float64)
    # The delta rule with long keys grows the state, and its roundings with it.
    bound = TOLERANCE * max(1.0, float(final.abs().max()))
    for function in IMPLEMENTATIONS.values():
        after = state.clone()
        o = function(a, *ports, **owned, batch=one(5, context=3), state=after)
        assert (o - want).abs().max() < bound
        assert (after[0] - final).abs().max() < bound


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("delta_rule", [False, True])
@pytest.mark.parametrize("decay,decay_form", DECAYS)
def test_every_cut_and_packing_equals_each_sequence_alone(implementation, delta_rule, decay, decay_form):
    a = KIND.parse(
        SIZES | dict(delta_rule=delta_rule, decay=decay, decay_form=decay_form, beta="sigmoid", qk_norm="l2", skip=True)
    )
    owned, sequences = draw(a, [11, 2, 7], seed=1)
    function = IMPLEMENTATIONS[implementation]
    alone = [pool(a) for _ in sequences]
    want = [function(a, *s, **owned, batch=one(len(s[0])), state=p) for s, p in zip(sequences, alone, strict=True)]
    slots = [4, 0, 2]
    for chunks in (
        [[1] * 11, [1, 1], [1] * 7],
        [[2, 1, 8], [1, 0, 1], [0, 3, 1, 3]],
        [[11], [2], [7]],
        [[1, 10], [0, 2], [2, 2, 2, 1]],
    ):
        state = pool(a, slots=5)
        got = run_steps(partial(function, a, **owned, state=state), sequences, chunks, slots)
        for o, expected, slot, p in zip(got, want, slots, alone, strict=True):
            assert (o - expected).abs().max() < TOLERANCE
            assert (state[slot] - p[0]).abs().max() < TOLERANCE
        assert state[[1, 3]].isnan().all()


@pytest.mark.parametrize("decay_form", ["softplus", "given"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_inner_arithmetic_is_float32_and_result_keeps_the_dtype(implementation, decay_form):
    a = KIND.parse(
        dict(key_heads=2, value_heads=4, key_dim=16, value_dim=8, delta_rule=True, decay="per_head")
        | dict(decay_form=decay_form, beta="sigmoid", qk_norm="l2")
    )
    owned, (ports,) = draw(a, [40], dtype=torch.bfloat16)
    owned = {name: w.float() for name, w in owned.items()}
    state, exact = pool(a, dtype=torch.float32), pool(a)
    o = IMPLEMENTATIONS[implementation](a, *ports, **owned, batch=one(40), state=state)
    want = reference.recurrence(
        a,
        *(p.double() for p in ports),
        **{name: w.double() for name, w in owned.items()},
        batch=one(40),
        state=exact,
    )
    assert o.dtype == torch.bfloat16
    # float32: 40 steps of errors of 6e-8 on values of size ~1, each step at worst passing on what came before
    assert (state - exact).abs().max() < 1e-5
    # and one rounding to bf16 at the end, 2^-8 of the value
    assert ((o.double() - want).abs() <= want.abs() * 2**-8 + 1e-5).all()


def test_large_gate_inputs_stay_finite():
    """softplus(x) is x for large x, not log(inf)."""
    a = KIND.parse(SIZES | dict(delta_rule=False, decay="per_head", decay_form="time_step"))
    owned, ((q, k, v, decay, _),) = draw(a, [3])
    owned = {name: torch.zeros_like(w) for name, w in owned.items()}
    o = reference.recurrence(a, q, k, v, torch.full_like(decay, 1e4), **owned, batch=one(3), state=pool(a))
    # the state is forgotten (exp(-1e4) = 0), and the value is multiplied by the time step
    weight = (q * k).reshape(3, 2, 3).sum(-1).repeat_interleave(2, 1) / math.sqrt(3) * 1e4
    assert torch.allclose(o, (weight[:, :, None] * v.reshape(3, 4, 2)).flatten(1), rtol=1e-12, atol=0)


def test_defaults():
    a = KIND.parse(SIZES | dict(delta_rule=True, decay="none"))
    given = set(SIZES) | {"delta_rule", "decay"}
    assert {name: value for name, value in a.model_dump().items() if name not in given} == dict(
        decay_form="softplus",
        lower_bound=-5.0,
        time_step_min=0.0,
        time_step_max=None,
        slope_scale=1.0,
        beta="none",
        beta_scale=1.0,
        qk_norm="none",
        qk_norm_eps=1e-6,
        scale=None,
        skip=False,
    )


def test_weights_and_state():
    def shapes(**more):
        return {
            n: (w.shape, w.dtype) for n, w in KIND.weights(KIND.parse(SIZES | dict(delta_rule=True) | more)).items()
        }

    assert shapes(decay="none") == shapes(decay="constant") == shapes(decay="per_head", decay_form="given") == {}
    per_head = {"A_log": ((4,), "float32"), "dt_bias": ((4,), "float32")}
    assert shapes(decay="per_head") == per_head
    assert shapes(decay="per_channel") == per_head | {"dt_bias": ((12,), "float32")}
    assert shapes(decay="none", skip=True) == {"D": ((4,), "float32")}
    (component,) = KIND.components(KIND.parse(SIZES | dict(delta_rule=True, decay="none")), "layers.0.mixer")
    assert (component.name, component.shape, component.dtype) == ("layers.0.mixer.state", (4, 3, 2), "float32")
    assert (component.role, component.rollback) == ("per_sequence", "restore")


def test_an_infinite_time_step_limit_is_none():
    a = KIND.parse(SIZES | dict(delta_rule=False, decay="per_head", time_step_max=float("inf")))
    assert a.time_step_max is None
    assert KIND.parse(SIZES | dict(delta_rule=False, decay="per_head", time_step_max=0.1)).time_step_max == 0.1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ports_must_fit_the_attributes(implementation):
    a = KIND.parse(SIZES | dict(delta_rule=True, decay="per_head", beta="sigmoid"))
    owned, ((q, k, v, decay, beta),) = draw(a, [2])
    run = partial(IMPLEMENTATIONS[implementation], batch=one(2), state=pool(a))
    with pytest.raises(ValueError, match="port decay is missing"):
        run(a, q, k, v, None, beta, **owned)
    with pytest.raises(ValueError, match="port beta is missing"):
        run(a, q, k, v, decay, **owned)
    single = KIND.parse(SIZES | dict(key_heads=1, value_heads=1, delta_rule=True, decay="per_head"))
    with pytest.raises(ValueError, match="port decay is missing"):
        run(single, q[:, :3], k[:, :3], v[:, :2])
    bare = KIND.parse(SIZES | dict(delta_rule=True, decay="none"))
    with pytest.raises(ValueError, match="port decay is given"):
        run(bare, q, k, v, decay)
    with pytest.raises(ValueError, match="port beta is given"):
        run(bare, q, k, v, None, beta)


def test_cost():
    a = KIND.parse(SIZES | dict(delta_rule=True, decay="per_channel", beta="sigmoid", skip=True))
    work = Work("decode", tokens=5, sequences=3, context=1, activation_bytes=2, weight_bytes=2)
    state = 3 * 4 * 3 * 2 * 4
    ports = 6 + 6 + 8 + 12 + 4
    weights = (4 + 12 + 4) * 4
    # per element of the state: decay 1, delta read 2, write 2, query read 2
    assert KIND.cost(a, work) == Cost(5 * 24 * 7, 5 * ports * 2 + weights + state, 5 * 8 * 2 + state)
    first = Work("prefill", tokens=5, sequences=3, context=0)
    assert KIND.cost(a, first).bytes_read == KIND.cost(a, work).bytes_read - state
    plain_sum = KIND.parse(SIZES | dict(delta_rule=False, decay="none"))
    assert KIND.cost(plain_sum, first) == Cost(5 * 24 * 4, 5 * 20 * 2, 5 * 8 * 2 + state)
    constant = KIND.parse(SIZES | dict(delta_rule=False, decay="constant"))
    assert KIND.cost(constant, first) == Cost(5 * 24 * 5, 5 * 20 * 2, 5 * 8 * 2 + state)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "attribute,edge,beyond",
    [
        ("key_dim", 1, 0),
        ("value_dim", 1, 0),
        ("lower_bound", 0.0, 0.5),
        ("time_step_min", 0.0, -0.5),
        ("qk_norm_eps", 0.0, -1e-6),
    ],
)
def test_contract_refuses(implementation, attribute, edge, beyond):
    contract = KIND.implementation(implementation).contract
    facts = KIND.parse(SIZES | dict(delta_rule=True, decay="none")).model_dump()
    assert contract.refusals({"attribute": facts, "dtype": {"activation": "bfloat16"}}) == []
    assert contract.refusals({"attribute": facts | {attribute: edge}}) == []
    (refusal,) = contract.refusals({"attribute": facts | {attribute: beyond}})
    assert str(refusal).startswith(f"recurrence/{implementation}.{attribute}: {beyond} ")
    assert contract.refusals({"dtype": {"activation": "int64"}})[0].clause == "dtype"


def test_blocks_are_for_prefill():
    contract = KIND.implementation("torch_chunked").contract
    assert contract.refusals({"phase": {"phase": "prefill"}}) == []
    assert [r.clause for r in contract.refusals({"phase": {"phase": "decode"}})] == ["phase"]
    assert KIND.implementation("torch").contract.refusals({"phase": {"phase": "decode"}}) == []


@pytest.mark.parametrize(
    "change,message",
    [
        (dict(key_heads=3), "4 value heads cannot share 3 key heads"),
        (dict(key_heads=0), "4 value heads cannot share 0 key heads"),
        (dict(key_heads=1, value_heads=0), "0 value heads cannot share 1 key heads"),
        (dict(decay="per_channel", decay_form="time_step"), "time_step needs decay per_head"),
        (dict(decay="per_token"), "decay"),
        (dict(gate="softplus"), "gate"),
    ],
)
def test_parse_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(SIZES | dict(delta_rule=True, decay="per_head") | change)


def test_one_head_is_enough():
    assert KIND.parse(SIZES | dict(key_heads=1, value_heads=1, delta_rule=True, decay="per_channel")).decay_width == 3


def test_alternatives_hold_the_values_of_known_families_and_keep_the_weights():
    base = SIZES | dict(delta_rule=True, decay="per_channel", beta="sigmoid")
    known = dict(delta_rule={False, True}, beta_scale={1.0, 2.0}, qk_norm_eps={1e-5, 1e-6}, scale={None, 1.0})
    for name, values in known.items():
        assert values <= set(KIND.attributes.alternatives()[name])
    for name, values in KIND.attributes.alternatives().items():
        for value in values:
            assert KIND.weights(KIND.parse(base | {name: value})) == KIND.weights(KIND.parse(base))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("decay,form", DECAYS)
def test_a_step_without_tokens(decay, form, implementation):
    a = KIND.parse(SIZES | dict(decay=decay, decay_form=form, delta_rule=True))
    owned, (ports,) = draw(a, [0])
    state = pool(a)
    o = IMPLEMENTATIONS[implementation](a, *ports, **owned, batch=one(0), state=state)
    assert o.shape == (0, a.value_heads * a.value_dim)
    assert torch.equal(state, torch.zeros_like(state))
