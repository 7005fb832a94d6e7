"""What `day0 kernels show` says of a kind's attributes, weights and state is what the kind declares."""

import inspect
import re

import pytest
from pydantic import ValidationError

from day0.cli.kernels import about_attributes
from day0.decompose.attribute_grid import candidates
from day0.kernels.registry import get_kind, kind_names

LATENT = dict(memory="latent", heads=3, value_dim=5, scale=0.5, rank=7, nope_dim=11, rope_dim=2)
KV = dict(memory="kv", heads=4, value_dim=5, scale=0.5, kv_heads=2, head_dim=7)
POOLED = dict(
    heads=3, dim=10, budget=8, scale=0.5, score="relu_weighted", pooling="softmax", pool=4,
    pooled_norm_eps=1e-6, pooled_rotary_dim=2, pooled_rotary_theta=1e4,
)  # fmt: skip
RECURRENCE = dict(key_heads=2, value_heads=6, key_dim=5, value_dim=7, delta_rule=True)
MIX = dict(width=11, streams=3, norm_eps=1e-6)

# With what one change of a closed attribute makes of them, every weight and component of the kind occurs.
EXAMPLES = {
    "attention": (KV, LATENT),
    "causal_conv": (dict(channels=5, kernel_size=4, dilation=3, bias=True),),
    "embedding": (dict(vocab_size=5, width=7),),
    "gate": (dict(channels=6),),
    "index_select": (POOLED, dict(heads=3, dim=10, budget=8, scale=0.5, score="relu_sum")),
    "linear": (dict(in_features=3, out_features=5),),
    "mlp": (dict(width=3, hidden=5),),
    "moe": (dict(width=3, hidden=5, experts=8, top_k=2, scores="sigmoid", shared_hidden=7),),
    "ngram_embedding": (
        dict(
            width=11, streams=2, embed_dim=12, vocab_size=50, ngram_size=3, heads_per_ngram=2, table_base=20,
            table_divisor=8, seed=1, layer_index=1, eos_id=0, norm_eps=1e-6, conv_kernel=4, conv_dilation=3,
        ),
    ),
    "norm": (dict(dim=3, eps=1e-6, groups=5),),
    "recurrence": (dict(RECURRENCE, decay="per_channel"), dict(RECURRENCE, decay="per_head", skip=True)),
    "residual_mix": (
        dict(scheme="add", width=11),
        dict(MIX, scheme="mhc", sinkhorn_iterations=2),
        dict(scheme="mhc", role="boundary", width=11, streams=3),
        dict(MIX, scheme="gated_streams", rank=5),
        dict(MIX, scheme="gated_streams", rank=5, role="boundary"),
        dict(scheme="attention", width=11, norm_eps=1e-6, sources=2),
    ),
    "rotary": (dict(head_dim=8, rotary_dim=4, theta=1e4),),
    "sparse_attention": (dict(KV, width=9), dict(LATENT, width=9)),
}  # fmt: skip


def variants(kind):
    """The examples of a kind, and what one change of a closed attribute makes of each, where the kind allows it."""
    for raw in EXAMPLES[kind.name]:
        attributes = kind.parse(raw)
        yield attributes
        for name, values in candidates(attributes).items():
            for value in values:
                try:
                    yield kind.parse({**raw, name: value})
                except ValidationError:
                    continue


def shown(words, attributes):
    """{name: (shape, dtype, role)} of what the words say that there is for these attributes."""
    cls = type(attributes)
    properties = [name for name in dir(cls) if isinstance(inspect.getattr_static(cls, name), property)]
    names = {name: getattr(attributes, name) for name in (*cls.model_fields, *properties) if name[:2] != "__"}

    def value(expression):
        return eval(expression, {"__builtins__": {}}, names)  # our own words, not a user's

    return {n: (tuple(value(w.shape)), w.dtype, w.role) for n, w in words.items() if not w.when or value(w.when)}


@pytest.mark.parametrize("name", kind_names())
def test_weights_and_state_are_as_shown(name):
    kind = get_kind(name)
    seen_weights, seen_state = set(), set()
    for attributes in variants(kind):
        weights = {n: (w.shape, w.dtype, "") for n, w in kind.weights(attributes).items()}
        state = {c.name: (c.shape, c.dtype, c.role) for c in kind.state(attributes)}
        assert shown(kind.weights_shown, attributes) == weights, attributes
        assert shown(kind.state_shown, attributes) == state, attributes
        seen_weights |= set(weights)
        seen_state |= set(state)
    assert seen_weights == set(kind.weights_shown) and seen_state == set(kind.state_shown)


@pytest.mark.parametrize("name", kind_names())
def test_every_attribute_is_explained(name):
    """By its field's description, or by name in what the class says of itself, which is shown above the table."""
    attributes = get_kind(name).attributes
    about = about_attributes(attributes)
    silent = [n for n, f in attributes.model_fields.items() if not f.description and not re.search(rf"`{n}\b", about)]
    assert silent == []
