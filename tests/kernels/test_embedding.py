"""embedding: rows of the table, scaled."""

import pytest
import torch

from day0.kernels.embedding.reference import embedding
from day0.kernels.interface.kind import Cost, Work
from day0.kernels.registry import get_kind, resolve

KIND = get_kind("embedding")


@pytest.mark.parametrize("scale", [1.0, 0.0, 2.0])
def test_rows_of_the_table(scale):
    a = KIND.parse(dict(vocab_size=7, width=3, scale=scale))
    assert {n: w.shape for n, w in KIND.weights(a).items()} == {"weight": (7, 3)}
    table = torch.randn(7, 3, dtype=torch.float64)
    ids = torch.tensor([6, 0, 3, 3])
    got = resolve("embedding", "torch")(a, ids, weight=table)
    for n, i in enumerate(ids.tolist()):
        for c in range(3):
            assert float(got[n, c]) == float(table[i, c]) * scale


def test_id_outside_the_table_is_an_error():
    a = KIND.parse(dict(vocab_size=2, width=3))
    with pytest.raises(IndexError):
        embedding(a, torch.tensor([2]), weight=torch.zeros(2, 3))


def test_dtype_is_kept():
    a = KIND.parse(dict(vocab_size=2, width=3, scale=0.5))
    assert embedding(a, torch.tensor([1]), weight=torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_cost_reads_one_row_and_one_id_per_token():
    work = Work("prefill", tokens=5, sequences=1, context=9, activation_bytes=4, weight_bytes=2)
    plain, scaled = (KIND.parse(dict(vocab_size=1000, width=3, scale=s)) for s in (1.0, 2.0))
    assert KIND.cost(plain, work) == Cost(flops=0, bytes_read=5 * (3 * 2 + 8), bytes_written=5 * 3 * 4)
    assert KIND.cost(scaled, work).flops == 15


def test_contract_refuses_what_cannot_be():
    contract = KIND.implementation("torch").contract
    bad = {"attribute": {"vocab_size": 0, "width": 0}, "dtype": {"activation": "float8_e4m3fn"}}
    assert [r.clause for r in contract.refusals(bad)] == ["vocab_size", "width", "dtype"]
    good = {"attribute": {"vocab_size": 1, "width": 1}, "dtype": {"activation": "float64"}}
    assert contract.refusals(good) == []


def test_unknown_attribute_is_refused():
    with pytest.raises(ValueError, match="padding_idx"):
        KIND.parse(dict(vocab_size=2, width=3, padding_idx=0))
