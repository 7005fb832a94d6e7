"""Alignments written out by hand."""

from day0.artifacts.alignment import Alignment, Gate, GreedyCell, InvarianceCell, Row
from day0.artifacts.base import Provenance

PRODUCED_BY = Provenance(
    day0_version="1", model_hash="a" * 64, reference_hash="r" * 64, kernel_set="k" * 64, device="cpu", flags={}
)


def row(error, *, gate="exactness", operator="attention", bound=1e-10, layer=3, prompt="code", ratio=None):
    return Row(
        gate=gate,
        prompt=prompt,
        mode="propagated",
        layer=layer,
        operator=operator,
        kind="toy",
        port="y",
        error=error,
        bound=bound,
        ratio=ratio,
        verdict="holds",
    )


def alignment(*rows, equal=True, tokens=64, holds="holds", gate="holds", cells=(), **provenance):
    return Alignment(
        produced_by=PRODUCED_BY.model_copy(update=provenance),
        model="toy",
        holds=holds,
        gates=(Gate(name="exactness", verdict=gate, detail="by hand"),),
        rows=rows,
        greedy=(GreedyCell(prompt="code", tokens=tokens, equal=equal, classified="equal" if equal else "tie"),),
        invariance=cells,
    )


def cell(error, state_error=0.0, name="chunked float64", bound=1e-9):
    return InvarianceCell(name=name, error=error, state_error=state_error, bound=bound, verdict="holds")
