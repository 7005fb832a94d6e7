"""sparse_attention: against dense attention and a gathered softmax, alone and behind index_select."""

from functools import partial

import pytest
import torch

from day0.kernels.interface.kind import Work
from day0.kernels.registry import get_kind, resolve
from day0.kernels.sparse_attention.contract import TORCH, TORCH_ABSORBED
from tests.kernels.paged import PagedSequences

KIND = get_kind("sparse_attention")
DENSE = get_kind("attention")
SELECT = get_kind("index_select")
FORMS = {
    "gqa": dict(memory="kv", heads=6, kv_heads=2, head_dim=5, value_dim=3, scale=0.3),
    "mla": dict(memory="latent", heads=3, rank=7, nope_dim=4, rope_dim=2, value_dim=5, scale=0.4),
    "mla_without_rope": dict(memory="latent", heads=2, rank=6, nope_dim=5, rope_dim=0, value_dim=3, scale=0.4),
}
CASES = [(f, "torch") for f in FORMS] + [(f, "torch_absorbed") for f in FORMS if f != "gqa"]
CHUNKS = [[[1] * 70, [3, 63]], [[64, 6], [0, 0, 65, 1]], [[0, 7, 1, 62], [66]]]
# As for dense attention: averages of at most 150 values of size ~3, scores of ~10 off by ~1e-15.
TOLERANCE = 1e-13


def port_widths(a):
    if a.memory == "kv":
        return (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.value_dim)
    return (a.heads * (a.nope_dim + a.rope_dim), a.rank) + ((a.rope_dim,) if a.rope_dim else ())


def random_choice(n, width):
    """Each position lists a random subset of its past in random order, holes in between; position 2 lists nothing."""
    indices = torch.full((n, width), -1)
    for t in range(n):
        count = 0 if t == 2 else int(torch.randint(1, min(t + 1, width) + 1, ()))
        columns = torch.randperm(width)[:count]
        indices[t, columns] = torch.randperm(t + 1)[:count]
    return indices


def random_case(form, lengths, width=10, dtype=torch.float64):
    a = KIND.parse(FORMS[form] | dict(width=width))
    sequences = []
    for n in lengths:
        q, *entry = (torch.randn(n, w, dtype=dtype) for w in port_widths(a))
        sequences.append((q, random_choice(n, width), *entry))
    weights = {n: torch.randn(w.shape, dtype=dtype) for n, w in KIND.weights(a).items()}
    return a, sequences, weights


def run(a, sequences, weights, chunks, implementation="torch", dtype=torch.float64):
    memory = PagedSequences(KIND.components(a), [s[0].shape[0] for s in sequences], dtype)
    operator = partial(resolve("sparse_attention", implementation), a, **weights, **memory.pools)
    return memory.run(operator, sequences, chunks), memory


def gathered(a, q, indices, first, second=None, *, kv_up=None):
    """The listed tokens alone, one query at a time: their keys and values, softmax, average."""
    out = torch.zeros(q.shape[0], a.heads, a.value_dim, dtype=torch.float64)
    for t, row in enumerate(indices.tolist()):
        listed = [i for i in row if i >= 0]
        for head in range(a.heads):
            if not listed:
                continue
            if a.memory == "kv":
                shared = head // (a.heads // a.kv_heads)
                keys = first[listed].view(len(listed), a.kv_heads, a.head_dim)[:, shared]
                values = second[listed].view(len(listed), a.kv_heads, a.value_dim)[:, shared]
            else:
                made = first[listed] @ kv_up.view(a.heads, -1, a.rank)[head].T
                keys, values = made[:, : a.nope_dim], made[:, a.nope_dim :]
                keys = keys if second is None else torch.cat((keys, second[listed]), dim=1)
            query = q[t].view(a.heads, -1)[head]
            out[t, head] = torch.softmax(a.scale * (keys @ query), dim=0) @ values
    return out.flatten(1)


@pytest.mark.parametrize("form,implementation", CASES)
def test_attends_to_exactly_the_listed_positions(form, implementation):
    a, sequences, weights = random_case(form, [33])
    (got,), _ = run(a, sequences, weights, [[20, 13]], implementation)
    assert (got - gathered(a, *sequences[0], **weights)).abs().max() < TOLERANCE
    assert (got[2] == 0).all()


@pytest.mark.parametrize("form,implementation", CASES)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_chunked_and_packed_equal_each_sequence_alone_in_one_pass(form, implementation, chunks):
    a, sequences, weights = random_case(form, [70, 66])
    got, memory = run(a, sequences, weights, chunks, implementation)
    for s, ports in enumerate(sequences):
        (want,), alone = run(a, [ports], weights, [[ports[0].shape[0]]])
        assert (got[s] - want).abs().max() < TOLERANCE
        for name, entries in memory.state(s).items():
            assert torch.equal(entries, alone.state(0)[name])


@pytest.mark.parametrize("form,implementation", CASES)
def test_choosing_everything_equals_dense_attention(form, implementation):
    n = 40
    a, sequences, weights = random_case(form, [n], width=n)
    q, _, *entry = sequences[0]
    everything = torch.arange(n).expand(n, n).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -1)
    (got,), _ = run(a, [(q, everything, *entry)], weights, [[9, 31]], implementation)
    dense = DENSE.parse(FORMS[form])
    memory = PagedSequences(DENSE.components(dense), [n])
    operator = partial(resolve("attention", implementation), dense, **weights, **memory.pools)
    (want,) = memory.run(operator, [(q, *entry)], [[n]])
    assert (got - want).abs().max() < TOLERANCE
    assert DENSE.components(dense) == KIND.components(a)
    assert DENSE.weights(dense) == KIND.weights(a)


def test_an_empty_list_gives_what_scaled_dot_product_attention_gives():
    q, k, v = torch.randn(3, 1, 2, 4, 5)
    nothing = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    assert (torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=nothing) == 0).all()


@pytest.mark.parametrize(
    "column,message",
    [(torch.tensor([0, 2, 1]), "after the query's own"), (torch.tensor([0, -2, 1]), "below -1")],
)
def test_positions_outside_the_past_are_refused(column, message):
    a, sequences, weights = random_case("gqa", [3], width=1)
    q, _, *entry = sequences[0]
    with pytest.raises(ValueError, match=message):
        run(a, [(q, column[:, None], *entry)], weights, [[3]])


def test_another_width_is_refused():
    a, sequences, weights = random_case("gqa", [3], width=4)
    q, _, *entry = sequences[0]
    with pytest.raises(ValueError, match="5 columns, not 4"):
        run(a, [(q, random_choice(3, 5), *entry)], weights, [[3]])


SELECTIONS = {
    "token": dict(heads=9, dim=6, budget=8, scale=0.4, score="relu_weighted", weight_scale=0.3),
    "softmax": dict(heads=9, dim=6, budget=8, scale=0.4, score="relu_weighted", pooling="softmax", pool=4, tail=True),
    "softmax_no_tail": dict(heads=9, dim=6, budget=8, scale=0.4, score="relu_weighted", pooling="softmax", pool=4),
    "qsa": dict(
        heads=9,
        dim=6,
        budget=8,
        scale=0.4,
        score="relu_sum",
        pooling="mean",
        pool=4,
        tail=True,
        pooled_norm_eps=1e-6,
        pooled_rotary_dim=2,
        pooled_rotary_theta=50.0,
    ),
}


def pipeline(selection, form, lengths, chunks, seed, budget=None):
    """index_select followed by sparse_attention on the same memory, and the sequences' final state."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    choose = SELECT.parse(SELECTIONS[selection] | ({} if budget is None else dict(budget=budget)))
    a = KIND.parse(FORMS[form] | dict(width=choose.width))
    chooses = {n: random(*w.shape) for n, w in SELECT.weights(choose).items()}
    weights = {n: random(*w.shape) for n, w in KIND.weights(a).items()}
    sequences = []
    for n in lengths:
        index_ports = (random(n, 54), random(n, 6), random(n, 9), random(n, 6))
        entry = tuple(random(n, w) for w in port_widths(a))
        sequences.append(index_ports + entry)
    memory = PagedSequences(SELECT.components(choose, "select") + KIND.components(a, "attend"), lengths)
    select_pools, pools = memory.owned("select"), memory.owned("attend")

    def operator(q, k, w, gate, query, *entry, batch):
        w = w if choose.score == "relu_weighted" else None
        gate = gate if choose.pooling == "softmax" else None
        indices = resolve("index_select", "torch")(choose, q, k, w, gate, batch=batch, **chooses, **select_pools)
        return resolve("sparse_attention", "torch")(a, query, indices, *entry, batch=batch, **weights, **pools)

    return memory.run(operator, sequences, chunks), memory, sequences, weights


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_behind_index_select_every_chunking_and_packing_is_the_same(selection, form, chunks):
    got, memory, *_ = pipeline(selection, form, [70, 66], chunks, seed=3)
    want, whole, *_ = pipeline(selection, form, [70, 66], [[70], [0, 66]], seed=3)
    for s in range(2):
        assert (got[s] - want[s]).abs().max() < TOLERANCE
        for name, entries in memory.state(s).items():
            assert (entries - whole.state(s)[name]).abs().max() < 1e-14


@pytest.mark.parametrize("selection", ["token", "softmax", "qsa"])
def test_behind_index_select_a_budget_of_the_whole_context_is_dense_attention(selection):
    (got,), _, sequences, weights = pipeline(selection, "mla", [30], [[11, 19]], seed=4, budget=32)
    a = DENSE.parse(FORMS["mla"])
    memory = PagedSequences(DENSE.components(a), [30])
    (want,) = memory.run(
        partial(resolve("attention", "torch"), a, **weights, **memory.pools), [sequences[0][4:]], [[30]]
    )
    assert (got - want).abs().max() < TOLERANCE


def test_cost_by_hand():
    a = KIND.parse(FORMS["gqa"] | dict(width=12))
    cost = KIND.cost(a, Work("prefill", tokens=8, sequences=2, context=10, activation_bytes=4))
    # queries at positions 10 .. 13 see 11, then 12 at most
    assert cost.flops == 2 * (11 + 12 + 12 + 12) * 6 * 2 * (5 + 3)
    # 10 remembered tokens a sequence, fewer than one query may choose; 12 indices of 8 bytes a token
    assert cost.bytes_read == 4 * (8 * (30 + 16) + 20 * 16) + 8 * 12 * 8
    assert cost.bytes_written == 4 * 8 * (18 + 16)


def test_cost_past_the_width_depends_on_the_context_no_more():
    a = KIND.parse(FORMS["mla"] | dict(width=12))
    near, far = (KIND.cost(a, Work("decode", tokens=3, sequences=3, context=c)) for c in (12, 4000))
    assert near == far
    # absorbed: kv_up per token; 12 of 13 visible positions, scores over 7 + 2 channels and a read of 7
    owned = 3 * (4 + 5) * 7
    assert near.flops == 2 * 3 * owned + 2 * 3 * 12 * 3 * (7 + 2 + 7)
    assert near.bytes_read == 2 * (3 * (18 + 9) + 3 * 12 * 9 + owned) + 3 * 12 * 8
    two = KIND.cost(a, Work("decode", tokens=6, sequences=6, context=12))
    assert two.flops == 2 * near.flops


@pytest.mark.parametrize(
    "given,message",
    [
        (dict(width=0), "width"),
        (dict(kv_heads=4), "cannot share"),
        (dict(rank=3), "mean nothing"),
        (dict(budget=8), "budget"),
    ],
)
def test_parse_refusals(given, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(FORMS["gqa"] | dict(width=8) | given)


def test_contract_refusals():
    latent = KIND.parse(FORMS["mla"] | dict(width=8)).model_dump()
    kv = KIND.parse(FORMS["gqa"] | dict(width=8)).model_dump()
    assert TORCH.refusals({"attribute": kv, "dtype": {"activation": "float16"}}) == []
    assert TORCH.refusals({"attribute": latent}) == TORCH_ABSORBED.refusals({"attribute": latent}) == []
    (refusal,) = TORCH_ABSORBED.refusals({"attribute": kv})
    assert str(refusal) == "sparse_attention/torch_absorbed.memory: kv not in {latent}"
    assert [r.clause for r in TORCH.refusals({"attribute": kv | dict(scale=-1.0)})] == ["scale"]
    assert [r.clause for r in TORCH.refusals({"dtype": {"activation": "int8"}})] == ["dtype"]
