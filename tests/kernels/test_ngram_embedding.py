"""ngram_embedding: against a formula per token, against Qwen4-Exp's modules, and over every way to cut a sequence."""

import math
from types import SimpleNamespace

import pytest
import torch

from day0.kernels.interface.batch import Batch
from day0.kernels.interface.kind import Work
from day0.kernels.ngram_embedding.hashing import multipliers, next_prime, splitmix64, table_sizes
from day0.kernels.ngram_embedding.reference import ngram_embedding, ngram_rows
from day0.kernels.registry import get_kind
from tests.kernels.float64 import Float64Meaning

KIND = get_kind("ngram_embedding")
# float64: two nested sums of at most 8 products, a root and a sigmoid: < 1000 ulp of values of size ~10.
TOLERANCE = 1e-12

EOS = 3
BASE = dict(
    width=4,
    streams=3,
    embed_dim=12,
    vocab_size=11,
    ngram_size=3,
    heads_per_ngram=2,
    table_base=20,
    table_divisor=8,
    seed=77,
    layer_index=1,
    eos_id=EOS,
    norm_eps=1e-2,
    conv_kernel=3,
    conv_dilation=2,
)
SEQUENCES = [[5, 1, EOS, 7, 2, 9, 10, EOS, EOS, 4, 0, 1, 8], [6], [EOS, 2, 5, 5, 1]]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(23)


def make(**changes):
    a = KIND.parse(BASE | changes)
    return a, {n: torch.randn(w.shape, dtype=torch.float64) for n, w in KIND.weights(a).items()}


def streams(a):
    return [torch.randn(len(ids), a.streams, a.width, dtype=torch.float64) for ids in SEQUENCES]


def pools(a, slots=5, dtype=torch.float64):
    """Per-sequence pools holding nonsense: NaN, and token ids that no sequence has."""
    shapes = {c.name: c.shape for c in KIND.components(a)}
    window = torch.full((slots, *shapes["window"]), float("nan"), dtype=dtype)
    return {"context": torch.full((slots, *shapes["context"]), 10**6), "window": window}


def batch_of(sequences, slots, seen=None):
    return Batch.pack(sequences, context_lens=seen or [0] * len(sequences), slots=slots, pages=[[] for _ in sequences])


# --- the fixed numbers -------------------------------------------------------------------------------------------


def test_splitmix64_gives_the_published_sequence():
    # first outputs of the reference generator seeded with 1234567 (its state grows by gamma before each output)
    gamma = 0x9E3779B97F4A7C15
    want = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [splitmix64((1234567 + i * gamma) % 2**64) for i in range(5)] == want


def test_primes():
    primes, number = [], 0
    for _ in range(10):
        number = next_prime(number)
        primes.append(number)
    assert primes == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    assert next_prime(113) == 127
    assert next_prime(120) == 127
    assert next_prime(20_000_000 - 1) == 20_000_003


def test_table_sizes_go_through_the_primes_layer_by_layer():
    assert table_sizes(20, 4, 0) == (23, 29, 31, 37)
    assert table_sizes(20, 4, 1) == (41, 43, 47, 53)
    assert table_sizes(23, 1, 0) == (23,)


def test_multipliers_are_odd_distinct_and_cannot_overflow():
    for vocab in (1, 11, 151936):
        got = multipliers(vocab, 5, 2, 99)
        assert all(m % 2 == 1 and 0 < m * max(vocab - 1, 1) < 2**63 for m in got)
        assert len(set(got)) == 5
    assert multipliers(2**63, 2, 0, 0) == (1, 1)


def test_multipliers_stay_below_half_of_what_the_vocabulary_leaves():
    gamma = 0x9E3779B97F4A7C15
    drawn = [splitmix64((5 + 10007 * 3 + i * gamma) % 2**64) for i in (1, 2, 3)]
    # the largest int64 over 1024, halved
    assert multipliers(1024, 3, 3, 5) == tuple(2 * (z % (2**52 - 1)) + 1 for z in drawn)


@pytest.mark.parametrize("layer_index", [0, 3])
def test_fixed_numbers_are_those_of_qwen4_exp(layer_index):
    from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

    want = theirs._build_layer_multipliers(151936, 3, layer_index, 1234).tolist()
    assert list(multipliers(151936, 3, layer_index, 1234)) == want
    heads = 4
    want = [theirs._find_nth_prime_after(999, layer_index * heads + i + 1) for i in range(heads)]
    assert list(table_sizes(1000, heads, layer_index)) == want


# --- the formula, a token at a time ------------------------------------------------------------------------------


def plain_rows(a, ids, t):
    """The table rows of token t of a sequence, with Python integers."""
    factors = multipliers(a.vocab_size, a.ngram_size, a.layer_index, a.seed)
    sizes = table_sizes(a.table_base, a.heads, a.layer_index)
    rows = []
    for n in range(2, a.ngram_size + 1):
        history = []
        for back in range(n):
            source = t - back
            cut = source < 0 or any(ids[i] == a.eos_id for i in range(source, t))
            history.append(a.eos_id if cut else ids[source])
        mixed = 0
        for token, factor in zip(history, factors, strict=False):
            mixed ^= token * factor
        for head in range((n - 2) * a.heads_per_ngram, (n - 1) * a.heads_per_ngram):
            rows.append(mixed % sizes[head] + sum(sizes[:head]))
    return rows


def rms(a, x, weight):
    """One stream vector at a time: x [S, H]."""
    out = torch.empty_like(x)
    for s in range(a.streams):
        root = math.sqrt(sum(float(v) ** 2 for v in x[s]) / a.width + a.norm_eps)
        for c in range(a.width):
            out[s, c] = float(x[s, c]) / root * (1 + float(weight[s * a.width + c]))
    return out


def plain(a, ids, h, owned):
    """One token at a time over a whole sequence."""
    ys, inputs = [], []
    for t in range(len(ids)):
        e = torch.cat([owned["table"][row] for row in plain_rows(a, ids, t)])
        k = rms(a, (owned["key"] @ e).view(a.streams, a.width), owned["key_norm"])
        q = rms(a, h[t], owned["query_norm"])
        y = torch.empty_like(h[t])
        for s in range(a.streams):
            match = sum(float(k[s, c]) * float(q[s, c]) for c in range(a.width)) / math.sqrt(a.width)
            gate = math.copysign(math.sqrt(max(abs(match), 1e-6)), match) if match else 0.0
            y[s] = (owned["value"] @ e) / (1 + math.exp(-gate))
        ys.append(y)
        inputs.append(rms(a, y, owned["conv_norm"]).flatten())
    out = torch.empty_like(h)
    for t in range(len(ids)):
        total = torch.zeros(a.channels, dtype=h.dtype)
        for j in range(a.conv_kernel):
            source = t - (a.conv_kernel - 1 - j) * a.conv_dilation
            if source >= 0:
                total += owned["conv"][:, j] * inputs[source]
        out[t] = h[t] + ys[t] + (total / (1 + torch.exp(-total))).view(a.streams, a.width)
    return out, inputs


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(ngram_size=2),
        dict(ngram_size=4, heads_per_ngram=1),
        dict(layer_index=0, seed=5),
        dict(conv_kernel=1),
        dict(conv_kernel=4, conv_dilation=3),
        dict(streams=1, width=6),
        dict(table_divisor=1, table_base=2),
    ],
)
def test_formula_and_final_state(changes):
    a, owned = make(**changes)
    for ids, h in zip(SEQUENCES, streams(a), strict=True):
        memory = pools(a)
        got = ngram_embedding(a, h, **owned, batch=batch_of([ids], [2]), **memory)
        want, inputs = plain(a, ids, h, owned)
        assert (got - want).abs().max() < TOLERANCE
        history = [EOS] * a.ngram_size + ids
        assert memory["context"][2].tolist() == history[len(history) - a.ngram_size + 1 :]
        padded = torch.stack([torch.zeros(a.channels, dtype=h.dtype)] * a.window + inputs)
        assert (memory["window"][2].T - padded[len(padded) - a.window :]).abs().sum() < TOLERANCE
        assert (memory["context"][[0, 1, 3, 4]] == 10**6).all()
        assert memory["window"][[0, 1, 3, 4]].isnan().all()


def test_tokens_before_an_eos_do_not_matter():
    a, _ = make(ngram_size=4, heads_per_ngram=1)

    def last_row(ids):
        return ngram_rows(a, batch_of([ids], [0]), pools(a)["context"])[-1].tolist()

    assert last_row([1, EOS, 2, 5]) == last_row([9, EOS, 2, 5]) == last_row([2, 5])
    assert last_row([1, 4, 2, 5]) != last_row([9, 4, 2, 5])
    # an eos itself still sees what stands before it
    assert last_row([1, 2, EOS]) != last_row([1, 4, EOS])


def test_a_gate_without_a_match_is_one_half():
    a, owned = make()
    owned["conv"].zero_()
    owned["key"].zero_()
    h = streams(a)[1]
    got = ngram_embedding(a, h, **owned, batch=batch_of([SEQUENCES[1]], [0]), **pools(a))
    e = torch.cat([owned["table"][row] for row in plain_rows(a, SEQUENCES[1], 0)])
    assert (got - h - 0.5 * (owned["value"] @ e)).abs().max() < TOLERANCE


def test_a_weak_match_is_lifted_to_the_floor():
    """An eps of 1e8 makes norms of size 1e-4 and matches of size 1e-8, all under the floor of 1e-6."""
    a, owned = make(norm_eps=1e8)
    owned["conv"].zero_()
    h = streams(a)[1]
    got = ngram_embedding(a, h, **owned, batch=batch_of([SEQUENCES[1]], [0]), **pools(a))
    e = torch.cat([owned["table"][row] for row in plain_rows(a, SEQUENCES[1], 0)])
    gates = (got - h)[0] / (owned["value"] @ e)
    lifted = 1 / (1 + math.exp(-1e-3)) - 0.5
    # got and h agree in 3 digits fewer than they have, and a value of 0.01 costs two more: 1e-16 * 1e5 of 2.5e-4
    assert ((gates - 0.5).abs() - lifted).abs().max() < 1e-11
    want, _ = plain(a, SEQUENCES[1], h, owned)
    assert (got - want).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    "chunks",
    [
        [[1] * 13, [1], [1] * 5],
        [[2, 1, 9, 1], [1], [0, 3, 2]],
        [[13], [1], [5]],
        [[1, 12], [0, 1], [2, 2, 1]],
    ],
    ids=["single tokens", "odd", "packed", "short first"],
)
def test_every_cut_and_packing_equals_each_sequence_alone(chunks):
    a, owned = make(conv_kernel=4, conv_dilation=3)
    hs, memory, slots = streams(a), pools(a), [4, 0, 2]
    done, outputs = [0, 0, 0], [[], [], []]
    for step in range(max(len(c) for c in chunks)):
        sizes = [c[step] if step < len(c) else 0 for c in chunks]
        active = [s for s in range(3) if sizes[s]]
        batch = batch_of(
            [SEQUENCES[s][done[s] : done[s] + sizes[s]] for s in active],
            [slots[s] for s in active],
            [done[s] for s in active],
        )
        h = torch.cat([hs[s][done[s] : done[s] + sizes[s]] for s in active])
        out = ngram_embedding(a, h, **owned, batch=batch, **memory)
        for s, part in zip(active, out.split([sizes[s] for s in active]), strict=True):
            outputs[s].append(part)
            done[s] += sizes[s]
    for s in range(3):
        alone = pools(a)
        want = ngram_embedding(a, hs[s], **owned, batch=batch_of([SEQUENCES[s]], [0]), **alone)
        assert (torch.cat(outputs[s]) - want).abs().max() < TOLERANCE
        assert torch.equal(memory["context"][slots[s]], alone["context"][0])
        assert (memory["window"][slots[s]] - alone["window"][0]).abs().max() < TOLERANCE
    assert memory["window"][[1, 3]].isnan().all()


# --- Qwen4-Exp ---------------------------------------------------------------------------------------------------


def qwen4_layer(a, owned):
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer

    config = SimpleNamespace(
        hidden_size=a.width,
        hc_count=a.streams,
        ple_embed_dim=a.embed_dim,
        ple_conv_kernel_size=a.conv_kernel,
        ngram_size=a.ngram_size,
        heads_per_ngram=a.heads_per_ngram,
        vocab_size=a.vocab_size,
        ngram_vocab_size_base=a.table_base,
        make_ngram_vocab_size_divisible_by=a.table_divisor,
        seed=a.seed,
        eos_token_id=[a.eos_id, 8],
        rms_norm_eps=a.norm_eps,
    )
    module = Qwen4ExpTextPLELayer(config, layer_idx=0, ple_layer_index=a.layer_index).double()
    names = {
        "ple_embedding.ngram_embedding.weight": owned["table"],
        "key_proj.weight": owned["key"],
        "value_proj.weight": owned["value"],
        "norm_key.weight": owned["key_norm"],
        "norm_query.weight": owned["query_norm"],
        "norm_conv.weight": owned["conv_norm"],
        "conv1d.weight": owned["conv"].unsqueeze(1),
    }
    missing, unexpected = module.load_state_dict(names, strict=False)
    assert not unexpected
    buffers = ["layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"]
    assert sorted(missing) == [f"ple_embedding.{b}" for b in buffers]
    return module


@pytest.mark.parametrize("layer_index,ngram_size,kernel", [(0, 3, 4), (2, 4, 2)])
def test_qwen4_exp_layer(layer_index, ngram_size, kernel):
    a, owned = make(
        layer_index=layer_index, ngram_size=ngram_size, conv_kernel=kernel, conv_dilation=ngram_size, norm_eps=1e-6
    )
    module = qwen4_layer(a, owned)
    for ids, h in zip(SEQUENCES, streams(a), strict=True):
        with Float64Meaning():
            want = module(h.flatten(-2)[None], torch.tensor([ids]), None)
        got = ngram_embedding(a, h, **owned, batch=batch_of([ids], [1]), **pools(a))
        assert (got.flatten(-2) - h.flatten(-2) - want[0]).abs().max() < TOLERANCE


def test_qwen4_exp_cached_steps():
    from transformers.cache_utils import DynamicCache
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

    a, owned = make(conv_dilation=3, norm_eps=1e-6)
    module = qwen4_layer(a, owned)
    config = Qwen4ExpTextConfig(
        num_hidden_layers=2,
        layer_types=["linear_attention", "indexed_attention"],
        ple_layer_ids=[1],
        ple_embed_dim=12,
        heads_per_ngram=2,
        eos_token_id=EOS,
    )
    cache, memory, done = DynamicCache(config=config), pools(a), 0
    ids, h = SEQUENCES[0], streams(a)[0]
    for size in (1, 4, 1, 1, 6):
        part = slice(done, done + size)
        with Float64Meaning():
            want = module(h[part].flatten(-2)[None], torch.tensor([ids[part]]), cache)
        got = ngram_embedding(a, h[part], **owned, batch=batch_of([ids[part]], [3], [done]), **memory)
        assert (got - h[part]).flatten(-2).sub(want[0]).abs().max() < TOLERANCE
        done += size


# --- what the kind declares --------------------------------------------------------------------------------------


def test_weights_and_state():
    a = KIND.parse(BASE)
    # heads 4 of layer 1: primes 41, 43, 47, 53, together 184, a multiple of 8
    assert a.rows == 184
    assert KIND.parse(BASE | dict(table_divisor=100)).rows == 200
    assert {n: (w.shape, w.dtype) for n, w in KIND.weights(a).items()} == {
        "table": ((184, 3), "activation"),
        "key": ((12, 12), "activation"),
        "value": ((4, 12), "activation"),
        "key_norm": ((12,), "activation"),
        "query_norm": ((12,), "activation"),
        "conv_norm": ((12,), "activation"),
        "conv": ((12, 3), "activation"),
    }
    got = [(c.name, c.role, c.shape, c.dtype, c.rollback) for c in KIND.components(a, "layers.0.ple")]
    assert got == [
        ("layers.0.ple.context", "per_sequence", (2,), "int64", "restore"),
        ("layers.0.ple.window", "per_sequence", (12, 4), "activation", "restore"),
    ]


def test_bfloat16_keeps_its_dtype_and_nears_float64():
    a, owned = make(width=32)
    owned = {n: (w * 0.3).bfloat16() for n, w in owned.items()}
    h = streams(a)[0].bfloat16()
    batch = batch_of([SEQUENCES[0]], [0])
    memory = pools(a, dtype=torch.bfloat16)
    got = ngram_embedding(a, h, **owned, batch=batch, **memory)
    assert got.dtype == memory["window"].dtype == torch.bfloat16
    exact = {n: w.double() for n, w in owned.items()}
    want = ngram_embedding(a, h.double(), **exact, batch=batch, **pools(a))
    # keys, norms, value, y, its norm, conv and two sums are rounded to bfloat16: 9 roundings of values up to ~4, of
    # which the conv of 3 taps of size 0.3 passes on what it gets
    assert (got.double() - want).abs().max() < 9 * 4 * 2**-9


def test_bfloat16_rounds_after_each_float32_step():
    """To the bit: norms, gate and convolution in float32, each result rounded; projections in bfloat16."""
    a, owned = make(width=32)
    owned = {n: w.bfloat16() for n, w in owned.items()}
    h = streams(a)[0].bfloat16()
    batch = batch_of([SEQUENCES[0]], [0])
    linear = torch.nn.functional.linear

    def rms(x, weight):
        x = x.float()
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + a.norm_eps)
        return (x * root * (1.0 + weight.float()).view(3, 32)).bfloat16()

    e = owned["table"][ngram_rows(a, batch, pools(a)["context"])].flatten(1)
    keys = rms(linear(e, owned["key"]).view(-1, 3, 32), owned["key_norm"]).float()
    match = (keys * rms(h, owned["query_norm"]).float()).sum(-1, keepdim=True) / 32**0.5
    gate = torch.sigmoid(match.sign() * match.abs().clamp(min=1e-6).sqrt())
    y = (gate * linear(e, owned["value"]).float()[:, None]).bfloat16()
    inputs = torch.cat((torch.zeros(4, 96), rms(y, owned["conv_norm"]).flatten(1).float()))
    total = sum(owned["conv"][:, j].float() * inputs[2 * j : 2 * j + 13] for j in range(3))
    mixed = torch.nn.functional.silu(total).bfloat16().view_as(y)
    got = ngram_embedding(a, h, **owned, batch=batch, **pools(a, dtype=torch.bfloat16))
    assert torch.equal(got, h + (y + mixed))


def test_cost():
    a = KIND.parse(BASE)
    first = KIND.cost(a, Work("prefill", tokens=7, sequences=2, context=0, activation_bytes=2, weight_bytes=4))
    # 12 channels: 3 norms x 4, match 2, value 1, 3 taps x 2, silu 4, two sums; projections of 12 x 12 and 4 x 12
    assert first.flops == 7 * (2 * 192 + 12 * (12 + 2 + 1 + 6 + 4 + 2))
    # norms and taps: 12 x (3 + 3); rows: 12 channels and an id per token
    assert first.bytes_read == (192 + 72) * 4 + 7 * (12 * 4 + 8) + 7 * 12 * 2
    assert first.bytes_written == 7 * 12 * 2 + 2 * (12 * 4 * 2 + 2 * 8)
    again = KIND.cost(a, Work("decode", tokens=7, sequences=2, context=5, activation_bytes=2, weight_bytes=4))
    assert again.bytes_read - first.bytes_read == 2 * (12 * 4 * 2 + 2 * 8)


@pytest.mark.parametrize(
    "changes,message",
    [
        (dict(embed_dim=13), "13 does not divide into 4 heads"),
        (dict(ngram_size=1), "need n >= 2"),
        (dict(heads_per_ngram=0), "0 heads"),
        (dict(parts=512), "parts"),
    ],
)
def test_parse_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        KIND.parse(BASE | changes)


FLOORS = dict(
    width=1,
    streams=1,
    vocab_size=1,
    table_base=1,
    table_divisor=1,
    layer_index=0,
    norm_eps=0.0,
    conv_kernel=1,
    conv_dilation=1,
)


@pytest.mark.parametrize("attribute", list(FLOORS))
def test_contract_refuses(attribute):
    contract = KIND.implementation("torch").contract
    facts = KIND.parse(BASE).model_dump()
    assert contract.refusals({"attribute": facts | FLOORS, "dtype": {"activation": "float64"}}) == []
    (refusal,) = contract.refusals({"attribute": facts | {attribute: FLOORS[attribute] - 1}})
    assert refusal.clause == attribute
    assert contract.refusals({"dtype": {"activation": "int64"}})[0].clause == "dtype"


def test_alternatives_parse_and_keep_the_weights():
    for name, values in KIND.attributes.alternatives().items():
        for value in values:
            assert KIND.weights(KIND.parse(BASE | {name: value})) == KIND.weights(KIND.parse(BASE))
