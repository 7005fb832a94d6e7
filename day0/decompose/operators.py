"""Operator records: a program's operators grouped over layers, with weights, state, cost, status and evidence."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from day0.artifacts.contract import Refusal
from day0.artifacts.inventory import Evidence, Operator, Status, StepCost, WeightUse
from day0.decompose.dataflow import Links
from day0.decompose.proof import Proof
from day0.kernels.interface.kind import Kind, Work
from day0.kernels.registry import get_kind
from day0.language.program import OperatorUse, Program
from day0.language.weights import describe, tensor_names
from day0.repo.headers import TensorHeader

# What the costs in an inventory are asked for. One sequence each: a long prompt, and one token after it.
PREFILL = dict(tokens=4096, sequences=1, context=0)
DECODE = dict(tokens=1, sequences=1, context=4096)

ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
HEADER_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


def operator_records(
    program: Program,
    links: Mapping[str, Links],
    proofs: Mapping[str, Proof],
    tensors: Mapping[str, TensorHeader],
    dtype: str,
) -> list[Operator]:
    """One record per operator name and attributes. `dtype`: of the weights, which sizes the costs."""
    groups: dict[tuple[str, str, Any], list[OperatorUse]] = {}
    for use in program.uses():
        groups.setdefault((use.name, use.kind, use.attributes), []).append(use)
    return [_record(places, links[name], proofs.get(name), tensors, dtype) for (name, _, _), places in groups.items()]


def _record(
    places: Sequence[OperatorUse],
    links: Links,
    proof: Proof | None,
    tensors: Mapping[str, TensorHeader],
    dtype: str,
) -> Operator:
    use = places[0]
    kind = get_kind(use.kind)
    status, refusals = status_of(kind, use.attributes)
    return Operator(
        name=use.name,
        block=use.block,
        kind=use.kind,
        attributes=use.attributes.model_dump(mode="json"),
        layers=tuple(u.layer for u in places if u.layer is not None),
        inputs=tuple(links.inputs),
        outputs=tuple(links.outputs),
        after=tuple(links.after),
        weights=tuple(_weight(use, kind, name, tensors, dtype) for name in use.weights),
        parameters=len(places) * sum(math.prod(w.shape) for w in kind.weights(use.attributes).values()),
        state=kind.state(use.attributes),
        prefill=_cost(kind, use, "prefill", PREFILL, dtype, len(places)),
        decode=_cost(kind, use, "decode", DECODE, dtype, len(places)),
        status=status,
        refusals=tuple(str(r) for r in refusals),
        evidence=evidence_of(proof),
    )


def status_of(kind: Kind[Any], attributes: Any) -> tuple[Status, list[Refusal]]:
    """ "reuse" when some implementation's contract covers every attribute; else "modify" and the fewest refusals."""
    facts = {name: getattr(attributes, name) for name in type(attributes).model_fields}
    refused = [implementation.contract.refusals({"attribute": facts}) for implementation in kind.implementations]
    fewest = min(refused, key=len)
    return ("modify", fewest) if fewest else ("reuse", [])


def evidence_of(proof: Proof | None) -> Evidence:
    if proof is None:
        return Evidence(established="declared", detail="the recipe says so; its behaviour was not watched")
    return Evidence(
        established="proved" if proof.proved else "contradicted" if proof.contradiction else "declared",
        detail=proof.detail,
        location=proof.location,
        probes=proof.probes,
        error=proof.error,
        contradiction=proof.contradiction,
        wrong=proof.wrong,
    )


def active_parameters(program: Program) -> int:
    """Weights read to compute one token: a lookup reads one row, a mixture its chosen experts.

    What a kind's cost reads with one byte per weight, less what it reads with none, plus the weights whose size does
    not follow the checkpoint's dtype.
    """

    def read(use: OperatorUse, weight_bytes: int) -> float:
        work = Work("decode", **DECODE, weight_bytes=weight_bytes)
        return get_kind(use.kind).cost(use.attributes, work).bytes_read

    def fixed(use: OperatorUse) -> int:
        owned = get_kind(use.kind).weights(use.attributes).values()
        return sum(math.prod(w.shape) for w in owned if w.dtype != "activation")

    return round(sum(read(use, 1) - read(use, 0) + fixed(use) for use in program.uses()))


def weights_dtype(tensors: Iterable[TensorHeader], config: Mapping[str, Any]) -> str:
    """The dtype that most bytes of the checkpoint have; without one, what its config says, else float32."""
    total: dict[str, int] = {}
    for tensor in tensors:
        name = HEADER_DTYPES.get(tensor.dtype)
        if name is not None:
            total[name] = total.get(name, 0) + tensor.nbytes
    if total:
        return max(total, key=lambda name: total[name])
    said = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    return said if said in ELEMENT_BYTES else "float32"


def _weight(use: OperatorUse, kind: Kind[Any], name: str, tensors: Mapping[str, TensorHeader], dtype: str) -> WeightUse:
    source = use.weights[name]
    names = tuple(tensor_names(source))
    header = tensors.get(names[0])
    shown = names if len(names) <= 4 else (*names[:3], f"... {len(names)} in all")
    stored = HEADER_DTYPES.get(header.dtype, header.dtype.lower()) if header is not None else dtype
    shape = kind.weights(use.attributes)[name].shape
    return WeightUse(name=name, shape=shape, dtype=stored, tensors=shown, transform=describe(source))


def _cost(
    kind: Kind[Any], use: OperatorUse, phase: Any, amount: Mapping[str, int], dtype: str, places: int
) -> StepCost:
    size = ELEMENT_BYTES[dtype]
    # 8-bit weights are computed with 16-bit activations.
    work = Work(phase, **amount, activation_bytes=max(size, 2), weight_bytes=size)
    cost = kind.cost(use.attributes, work)
    return StepCost(
        flops=cost.flops * places, bytes_read=cost.bytes_read * places, bytes_written=cost.bytes_written * places
    )
