"""What a query sees: the mask, and the count of pairs, against enumeration."""

import pytest
import torch

from day0.kernels.common.attention_torch import causal_mask
from day0.kernels.common.causal import visible_pairs
from day0.kernels.interface.kind import Work


@pytest.mark.parametrize("context,tokens", [(0, 1), (0, 5), (3, 1), (4, 3)])
def test_a_query_sees_the_positions_up_to_its_own(context, tokens):
    mask = causal_mask(context, tokens, torch.device("cpu"))
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[j <= context + i for j in range(context + tokens)] for i in range(tokens)]


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 5, 6, 7, 100])
@pytest.mark.parametrize("context", [0, 1, 4, 5, 6, 50])
@pytest.mark.parametrize("tokens,sequences", [(1, 1), (7, 1), (12, 4)])
def test_pairs(limit, context, tokens, sequences):
    work = Work("prefill", tokens=tokens, sequences=sequences, context=context)
    seen = [context + i + 1 for i in range(tokens // sequences)]
    want = sequences * sum(n if limit is None else min(n, limit) for n in seen)
    assert visible_pairs(work, limit) == want
