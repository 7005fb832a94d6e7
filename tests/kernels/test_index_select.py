"""index_select: against scoring and choosing one query at a time, and over chunkings and packings."""

import math
from functools import partial

import pytest
import torch

from day0.kernels.index_select.contract import TORCH
from day0.kernels.index_select.reference import choices, index_scores, index_select, pool_keys, select
from day0.kernels.index_select.schema import dense_limit
from day0.kernels.interface.kind import Work
from day0.kernels.registry import get_kind
from tests.kernels.paged import PagedSequences

KIND = get_kind("index_select")
DIM = 6
TOKEN = dict(heads=9, dim=DIM, budget=8, scale=0.4, score="relu_weighted", weight_scale=0.3)
FORMS = {
    "token": TOKEN,
    "token_sum": dict(heads=9, dim=DIM, budget=5, scale=0.4, score="relu_sum"),
    "softmax": TOKEN | dict(pooling="softmax", pool=4, tail=True),
    "softmax_no_tail": TOKEN | dict(pooling="softmax", pool=8),
    "softmax_one": TOKEN | dict(pooling="softmax", pool=1, tail=True),
    "mean": dict(heads=9, dim=DIM, budget=12, scale=0.4, score="relu_sum", pooling="mean", pool=4, tail=True),
    "mean_norm": TOKEN | dict(pooling="mean", pool=2, tail=True, pooled_norm_eps=0.1),
    "mean_rotary": TOKEN | dict(pooling="mean", pool=2, pooled_rotary_dim=4, pooled_rotary_theta=50.0),
    "qsa": dict(
        heads=9,
        dim=DIM,
        budget=12,
        scale=0.4,
        score="relu_sum",
        pooling="mean",
        pool=4,
        tail=True,
        pooled_norm_eps=0.1,
        pooled_rotary_dim=2,
        pooled_rotary_theta=50.0,
    ),
}


def random_case(form, lengths, dtype=torch.float64):
    a = KIND.parse(FORMS[form])
    sequences = [
        (
            torch.randn(n, a.heads * a.dim, dtype=dtype),
            torch.randn(n, a.dim, dtype=dtype),
            torch.randn(n, a.heads, dtype=dtype) if a.score == "relu_weighted" else None,
            torch.randn(n, a.dim, dtype=dtype) if a.pooling == "softmax" else None,
        )
        for n in lengths
    ]
    weights = {n: torch.randn(w.shape, dtype=dtype) for n, w in KIND.weights(a).items()}
    return a, sequences, weights


def run(a, sequences, weights, chunks, dtype=torch.float64):
    memory = PagedSequences(KIND.components(a), [s[0].shape[0] for s in sequences], dtype)
    return memory.run(partial(index_select, a, **weights, **memory.pools), sequences, chunks), memory


def plain_key(a, j, k, gate, weights):
    """The finished key of candidate j, one channel at a time."""
    tokens = range(j * a.pool, (j + 1) * a.pool)
    key = []
    for c in range(a.dim):
        values = [float(k[t, c]) for t in tokens]
        if a.pooling == "softmax":
            share = [math.exp(float(gate[t, c]) + float(weights["pool_bias"][i, c])) for i, t in enumerate(tokens)]
            key.append(sum(v * s for v, s in zip(values, share, strict=True)) / sum(share))
        else:
            key.append(sum(values) / a.pool)
    if a.pooled_norm_eps:
        root = math.sqrt(sum(v * v for v in key) / a.dim + a.pooled_norm_eps)
        key = [v / root * (1 + float(w)) for v, w in zip(key, weights["pooled_norm"], strict=True)]
    half = a.pooled_rotary_dim // 2
    for i in range(half):
        frequency = float(torch.tensor(50.0 ** (-i / half), dtype=torch.float32))
        turn = complex(math.cos(j * a.pool * frequency), math.sin(j * a.pool * frequency))
        z = complex(key[i], key[i + half]) * turn
        key[i], key[i + half] = z.real, z.imag
    return key


def plain_scores(a, ports, weights):
    """[n, candidates] with None where the query may not choose the candidate."""
    q, k, w, gate = ports
    keys = [plain_key(a, j, k, gate, weights) for j in range(k.shape[0] // a.pool)]
    rows = []
    for t in range(q.shape[0]):
        row = []
        for j, key in enumerate(keys):
            if (j + 1) * a.pool - 1 > t:
                row.append(None)
                continue
            total = 0.0
            for head in range(a.heads):
                dot = sum(float(q[t, head * a.dim + c]) * key[c] for c in range(a.dim))
                weight = float(w[t, head]) * a.weight_scale if a.score == "relu_weighted" else 1.0
                total += weight * max(dot * a.scale, 0.0)
            row.append(total)
        rows.append(row)
    return rows


def plain_select(a, scores):
    rows = []
    for t, row in enumerate(scores):
        visible = [j for j, score in enumerate(row) if score is not None]
        best = sorted(visible, key=lambda j: (-row[j], j))[: a.budget // a.pool]
        tokens = {j * a.pool + i for j in best for i in range(a.pool)}
        if a.tail:
            tokens |= {i for i in range(t + 1) if i >= (t + 1) // a.pool * a.pool}
        rows.append(sorted(tokens))
    return rows


def chosen(indices):
    """The positions of each row; checks that they stand first, in ascending order, and that the rest is -1."""
    rows = []
    for row in indices.tolist():
        found = [i for i in row if i >= 0]
        assert row == sorted(found) + [-1] * (len(row) - len(found))
        rows.append(found)
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_formula(form):
    a, sequences, weights = random_case(form, [37])
    (got,), _ = run(a, sequences, weights, [[37]])
    assert got.dtype == torch.int64
    assert got.shape == (37, a.budget + (a.pool - 1 if a.tail else 0)) == (37, a.width)
    assert chosen(got) == plain_select(a, plain_scores(a, sequences[0], weights))


@pytest.mark.parametrize("form", FORMS)
def test_scores(form):
    a, sequences, weights = random_case(form, [21])
    _, memory = run(a, sequences, weights, [[21]])
    q, _, w, _ = sequences[0]
    keys = memory.state(0)["keys" if a.pooling == "none" else "pooled_keys"]
    # Queries 3 .. 20 only: their positions, not their row numbers, say what they see.
    scores, visible = index_scores(a, q[3:], keys, None if w is None else w[3:], torch.arange(3, 21))
    for got, seen, want in zip(scores, visible, plain_scores(a, sequences[0], weights)[3:], strict=True):
        assert seen.tolist() == [s is not None for s in want]
        # sums of 9 heads of 6 channels, of size ~10: a few dozen roundings of 1e-15; frequencies may differ by an
        # ulp of float32 (6e-8) where they are made by another power, times positions up to 20 and scores up to ~10
        bound = 2e-5 if a.pooled_rotary_dim else 1e-13
        assert all(abs(float(g) - s) < bound for g, s in zip(got, want, strict=True) if s is not None)
    assert scores.dtype == torch.float64


@pytest.mark.parametrize("form", FORMS)
def test_choices(form):
    """The best by the scores given are what is selected, packed or not, before the state is written or after."""
    a, sequences, weights = random_case(form, [37, 2, 21])
    memory = PagedSequences(KIND.components(a), [37, 2, 21])
    given = []

    def both(*ports, batch):
        for _ in range(2):
            given.extend(choices(a, *ports, batch=batch, **weights, **memory.pools).items())
        return index_select(a, *ports, batch=batch, **weights, **memory.pools)

    selected = memory.run(both, sequences, [[37], [2], [21]])
    (name, choice), (_, again) = given
    assert torch.equal(choice.scores, again.scores) and name == ("tokens" if a.pooling == "none" else "pools")
    assert choice.scores.shape == (60, 37 // a.pool) and choice.kept == a.budget // a.pool
    for got, scores in zip(selected, choice.scores.split([37, 2, 21]), strict=True):
        rows = [[s if s > -math.inf else None for s in row] for row in scores.tolist()]
        assert chosen(got) == plain_select(a, rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunks", [[[1] * 70, [3, 63]], [[64, 6], [0, 0, 65, 1]], [[0, 7, 1, 62], [66]], [[70], [66]]])
def test_chunked_and_packed_equal_each_sequence_alone_in_one_pass(form, chunks):
    a, sequences, weights = random_case(form, [70, 66])
    got, memory = run(a, sequences, weights, chunks)
    for s, ports in enumerate(sequences):
        (want,), alone = run(a, [ports], weights, [[ports[0].shape[0]]])
        assert torch.equal(got[s], want)
        for name, entries in memory.state(s).items():
            # the same sums over the same few tokens, in whichever step: at most an ulp or two of size ~3
            assert (entries - alone.state(0)[name]).abs().max() < 1e-14
    for component in KIND.components(a):
        rows = 2 if component.role == "per_sequence" else 70 // a.pool + 66 // a.pool
        assert memory.written(component.name) == rows


@pytest.mark.parametrize("form", ["softmax", "mean"])
def test_tail_state_holds_the_incomplete_pool_and_zeros(form):
    a, sequences, weights = random_case(form, [11])
    _, memory = run(a, sequences, weights, [[7, 4]])
    _, k, _, gate = sequences[0]
    state = memory.state(0)
    assert torch.equal(state["tail_keys"], torch.cat((k[8:], torch.zeros(1, DIM, dtype=k.dtype))))
    if form == "softmax":
        assert torch.equal(state["tail_gates"], torch.cat((gate[8:], torch.zeros(1, DIM, dtype=k.dtype))))


def test_components():
    (keys,) = KIND.components(KIND.parse(FORMS["token"]))
    assert (keys.name, keys.role, keys.rollback, keys.index, keys.tokens_per_entry) == (
        "keys",
        "token_paged",
        "truncate",
        True,
        1,
    )
    pooled, *tails = KIND.components(KIND.parse(FORMS["softmax"]))
    assert (pooled.name, pooled.role, pooled.rollback, pooled.index, pooled.tokens_per_entry, pooled.shape) == (
        "pooled_keys",
        "token_paged",
        "truncate",
        True,
        4,
        (DIM,),
    )
    assert [(t.name, t.role, t.rollback, t.shape, t.index) for t in tails] == [
        (name, "per_sequence", "restore", (4, DIM), True) for name in ("tail_keys", "tail_gates")
    ]
    assert [c.name for c in KIND.components(KIND.parse(FORMS["mean"]))] == ["pooled_keys", "tail_keys"]


def test_equal_scores_prefer_the_earlier_candidate():
    a = KIND.parse(TOKEN | dict(budget=2))
    scores = torch.tensor([[1.0, 2.0, 1.0, 2.0, 2.0], [0.0, -0.0, 0.0, -1.0, 0.0], [5.0, 1.0, 1.0, 9.0, 9.0]])
    positions = torch.tensor([4, 4, 2])
    visible = torch.arange(5) <= positions[:, None]
    assert select(a, scores, visible, positions).tolist() == [[1, 3], [0, 1], [0, 1]]
    # Enough equal candidates for a sort that is not stable to mix them up.
    many = (torch.arange(2000) % 2).double()[None]
    a = KIND.parse(TOKEN | dict(budget=700))
    got = select(a, many, torch.ones(1, 2000, dtype=torch.bool), torch.tensor([1999]))
    assert got.tolist() == [list(range(1, 1400, 2))]


def test_a_budget_beyond_the_context_selects_all_that_is_visible():
    for form in ("token", "softmax", "mean"):
        a = KIND.parse(FORMS[form] | dict(budget=256))
        _, sequences, weights = random_case(form, [130])
        (got,), _ = run(a, sequences, weights, [[130]])
        assert chosen(got) == [list(range(t + 1)) for t in range(130)]


@pytest.mark.parametrize("form", FORMS)
def test_up_to_the_dense_limit_all_that_is_visible_is_selected_and_beyond_it_not(form):
    a, sequences, weights = random_case(form, [40])
    (got,), _ = run(a, sequences, weights, [[40]])
    dense = [row == list(range(t + 1)) for t, row in enumerate(chosen(got))]
    limit = dense_limit(a)
    if limit is None:
        assert not dense[0] and KIND.switch(a) is None  # a lone token is no complete pool
    else:
        assert dense == [t + 1 <= limit for t in range(40)]
        assert KIND.switch(a) == f"a query sees at most {limit} tokens"


def test_scores_are_float32_inside_and_pooled_keys_rounded_to_the_activation_dtype():
    for form in ("token", "softmax", "qsa"):
        a, sequences, weights = random_case(form, [24], torch.bfloat16)
        _, memory = run(a, sequences, weights, [[24]], torch.bfloat16)
        state = memory.state(0)
        assert all(entries.dtype == torch.bfloat16 for entries in state.values())
        keys = state["keys" if form == "token" else "pooled_keys"]
        q, _, w, _ = sequences[0]
        scores, _ = index_scores(a, q, keys, w, torch.arange(24))
        want, _ = index_scores(a, q.double(), keys.double(), None if w is None else w.double(), torch.arange(24))
        assert scores.dtype == torch.float32
        # sums of 6 and then 9 float32 terms, of size up to a few hundred
        assert (scores.double() - want).abs().max() < 20 * 2**-24 * 300
        exact = [tuple(None if p is None else p.double() for p in ports) for ports in sequences]
        _, memory = run(a, exact, {n: x.double() for n, x in weights.items()}, [[24]])
        wanted = memory.state(0)["keys" if form == "token" else "pooled_keys"]
        # pooled, normalised and rotated: at most six roundings by 2^-9, of values up to the largest
        assert (keys.double() - wanted).abs().max() <= (0 if form == "token" else 6 * 2**-9 * wanted.abs().max())


def test_pooled_keys_are_rounded_where_the_families_round():
    """In bfloat16, to the bit: softmax, mean and norm in float32, each result rounded, products of rounded numbers."""
    keys, gates, bias = torch.randn(3, 40, DIM).bfloat16().unbind()
    norm = torch.randn(DIM).bfloat16()
    softmax = KIND.parse(FORMS["softmax"])
    shares = (gates.float().view(10, 4, DIM) + bias[:4].float()).softmax(dim=1).bfloat16()
    pooled = (shares * keys.view(10, 4, DIM)).sum(dim=1)
    assert torch.equal(pool_keys(softmax, 3, keys, gates, pool_bias=bias[:4]), pooled)

    normed = KIND.parse(FORMS["mean_norm"] | dict(pool=4))
    mean = keys.view(10, 4, DIM).float().mean(dim=1).bfloat16()
    root = torch.rsqrt(mean.float().pow(2).mean(-1, keepdim=True) + 0.1)
    want = (mean.float() * root * (1.0 + norm.float())).bfloat16()
    assert torch.equal(pool_keys(normed, 3, keys, None, pooled_norm=norm), want)

    turned = KIND.parse(FORMS["mean_rotary"] | dict(pool=4))
    angles = torch.outer(torch.arange(12, 52, 4).float(), torch.tensor([1.0, 50.0**-0.5]))
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    first, second = mean[:, :2], mean[:, 2:4]
    want = torch.cat((first * cos - second * sin, second * cos + first * sin, mean[:, 4:]), dim=-1)
    assert torch.equal(pool_keys(turned, 3, keys, None), want)


@pytest.mark.parametrize(
    "form,change,message",
    [
        ("token", {2: None}, "score relu_weighted needs weights"),
        ("token_sum", {2: torch.zeros(3, 9)}, "score relu_sum takes no weights"),
        ("softmax", {3: None}, "pooling softmax needs pool_gate"),
        ("mean", {3: torch.zeros(3, DIM)}, "pooling mean takes no pool_gate"),
    ],
)
def test_ports_that_do_not_belong_are_refused(form, change, message):
    a, sequences, weights = random_case(form, [3])
    ports = tuple(change.get(i, port) for i, port in enumerate(sequences[0]))
    with pytest.raises(ValueError, match=message):
        run(a, [ports], weights, [[3]])


def test_pools_that_do_not_belong_are_refused():
    a, sequences, weights = random_case("softmax", [3])
    memory = PagedSequences(KIND.components(KIND.parse(FORMS["mean"])), [3])
    with pytest.raises(ValueError, match="not \\['pooled_keys', 'tail_keys', 'tail_gates'\\]"):
        memory.run(partial(index_select, a, **weights, **memory.pools), sequences, [[3]])


def test_cost_of_tokens_by_hand():
    a = KIND.parse(TOKEN)
    cost = KIND.cost(a, Work("prefill", tokens=6, sequences=2, context=10, activation_bytes=4))
    # each of 9 heads: 6 products and sums, a relu, a product and a sum
    assert cost.flops == 2 * (11 + 12 + 13) * 9 * (12 + 3)
    assert cost.bytes_read == 4 * (6 * (54 + 6 + 9) + 2 * 10 * 6)
    assert cost.bytes_written == 4 * 6 * 6 + 6 * 8 * 8


def test_cost_of_softmax_pools_by_hand():
    a = KIND.parse(FORMS["softmax"])
    cost = KIND.cost(a, Work("prefill", tokens=6, sequences=1, context=10, activation_bytes=4, weight_bytes=2))
    # queries at positions 10 .. 15 see 2, 3, 3, 3, 3, 4 pools; 2 pools are finished
    assert cost.flops == (2 + 3 + 3 + 3 + 3 + 4) * 9 * 15 + 6 * 6 * 6
    # 2 pooled keys and 2 waiting tokens' keys and gates are remembered
    assert cost.bytes_read == 4 * (6 * (54 + 6 + 9 + 6) + 2 * 6 + 2 * 12) + 4 * 6 * 2
    assert cost.bytes_written == 4 * (2 * 6 + 4 * 12) + 6 * 11 * 8


def test_cost_of_mean_pools_by_hand():
    a = KIND.parse(FORMS["qsa"])
    cost = KIND.cost(a, Work("decode", tokens=2, sequences=2, context=11, activation_bytes=2, weight_bytes=4))
    # each of 2 sequences finishes its third pool: a mean, a norm and one rotated pair; 3 pools seen, by 9 heads
    assert cost.flops == 2 * (3 * 9 * (12 + 2) + 6 + 5 * 6 + 3 * 2)
    assert cost.bytes_read == 2 * (2 * (54 + 6) + 2 * (2 * 6 + 3 * 6)) + 6 * 4
    assert cost.bytes_written == 2 * 2 * (6 + 4 * 6) + 2 * 15 * 8


def test_cost_grows_linearly_with_context():
    for form in FORMS:
        a = KIND.parse(FORMS[form])
        one, two, three = (KIND.cost(a, Work("decode", tokens=3, sequences=3, context=c)) for c in (640, 1280, 1920))
        assert two.flops - one.flops == three.flops - two.flops > 0
        assert two.bytes_read - one.bytes_read == three.bytes_read - two.bytes_read > 0


@pytest.mark.parametrize(
    "form,given,message",
    [
        ("token", dict(pool=4), "pool need a pooling"),
        ("token", dict(tail=True, pooled_norm_eps=1e-6), "tail, pooled_norm_eps need a pooling"),
        ("token", dict(pooled_rotary_dim=2, pooled_rotary_theta=10.0), "need a pooling"),
        ("token_sum", dict(weight_scale=0.5), "weight_scale means nothing"),
        ("softmax", dict(pool=3, budget=9), "pools of 3 tokens do not fit pages of 64"),
        ("softmax", dict(pool=128, budget=128), "pools of 128"),
        ("softmax", dict(budget=6), "a budget of 6 tokens is no multiple of pools of 4"),
        ("mean_rotary", dict(pooled_rotary_theta=0.0), "go together"),
        ("mean_rotary", dict(pooled_rotary_theta=1.0), "go together"),
        ("mean_rotary", dict(pooled_rotary_dim=0), "go together"),
        ("mean_rotary", dict(pooled_rotary_dim=8), "exceeds dim 6"),
        ("mean_rotary", dict(pooled_rotary_dim=3), "pooled_rotary_dim"),
        ("softmax", dict(unit="pool"), "unit"),
        ("softmax", dict(score="relu"), "score"),
    ],
)
def test_parse_refusals(form, given, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(FORMS[form] | given)


def test_all_channels_may_turn_and_any_base_above_one_is_legal():
    assert KIND.parse(FORMS["mean_rotary"] | dict(pooled_rotary_dim=6, pooled_rotary_theta=1.5)).pooled_rotary_dim == 6


def test_weights():
    assert {n: w.shape for n, w in KIND.weights(KIND.parse(FORMS["softmax"])).items()} == {"pool_bias": (4, DIM)}
    assert {n: w.shape for n, w in KIND.weights(KIND.parse(FORMS["qsa"])).items()} == {"pooled_norm": (DIM,)}
    assert KIND.weights(KIND.parse(FORMS["token"])) == KIND.weights(KIND.parse(FORMS["mean"])) == {}


@pytest.mark.parametrize("fact,value", [("pool", 3), ("budget", 0), ("score", "max"), ("pooling", "max")])
def test_contract_refusals(fact, value):
    accepted = KIND.parse(FORMS["qsa"]).model_dump()
    assert TORCH.refusals({"attribute": accepted, "dtype": {"activation": "bfloat16"}}) == []
    assert [r.clause for r in TORCH.refusals({"attribute": accepted | {fact: value}})] == [fact]
    assert [r.clause for r in TORCH.refusals({"dtype": {"activation": "int8"}})] == ["dtype"]


def test_alternatives_parse():
    base = FORMS["qsa"]
    for name, values in KIND.attributes.alternatives().items():
        assert len({KIND.parse(base | {name: value}) for value in values}) == len(values)
