"""When an operator does not compute what the reference does: the attribute, and the value of it, that would."""

import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any, Literal

from pydantic import ValidationError
from torch import Tensor

from day0.decompose.interpret import Interpreter, OperatorCall, OperatorFailure, Weights, changed
from day0.decompose.proof import Found, Probe, Proof, search, tensors_of
from day0.kernels.interface.attributes import Attributes
from day0.kernels.registry import get_kind
from day0.language.program import OperatorUse, Program

MAX_REPAIRS = 8
# Operators after the first wrong one whose outputs are unknown too: the culprit is among them.
CHAIN = 4
MAX_PAIRS = 60

Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Verdict:
    text: str
    wrong: tuple[str, ...] = ()  # the attributes that differ
    location: str = ""
    error: float | None = None


def prove_program(program: Program, weights: Weights, probes: Sequence[Probe], *, tolerance: float) -> dict[str, Proof]:
    """The proof, or what stands against it, of every operator of the program, by name.

    Wrong attributes are looked for one operator after the other, in the order of execution; each is replaced by the
    value that reproduces the reference, so that what comes after is judged on the reference's own inputs. Where no
    value does, the reference's nearest tensors take the place of the outputs.
    """
    changes: Changes = {}
    forced: dict[tuple[str, str], str] = {}
    verdicts: dict[str, _Verdict] = {}
    unseen: set[str] = set()
    found: list[Found] = []
    for _ in range(MAX_REPAIRS):
        found = search(program, weights, probes, tolerance=tolerance, changes=changes, forced=forced)
        first = next((f for f in found if f.confirmed_by is None and f.call.key not in forced), None)
        if first is None:
            break
        chain = _chain(first, found)
        repair = _repair(program, weights, probes, tolerance, changes, chain, found)
        if repair is not None:
            culprit, change = repair
            changes = changes | {culprit.name: changes.get(culprit.name, {}) | change}
            old = {name: getattr(culprit.call.use.attributes, name) for name in change}
            verdicts[culprit.name] = _Verdict(
                f"{culprit.call.use.path}: "
                + ", ".join(
                    f"{k} is {old[k]!r} in the recipe, the reference computes with {v!r}" for k, v in change.items()
                ),
                wrong=tuple(change),
            )
            continue
        if _only_chooses(first, found):
            unseen.add(first.name)
            forced |= {f.call.key: "" for f in found if f.name == first.name}
            continue
        culprit, verdict = _blame(chain, probes)
        verdicts[culprit.name] = verdict
        if culprit.failure:
            break
        forced |= {f.call.key: _moved(verdict.location, culprit, f) for f in found if f.name == culprit.name}
    return _proofs(found, probes, verdicts, unseen, program)


def _chain(first: Found, found: Sequence[Found]) -> list[Found]:
    """The first call whose outputs are unknown, and the next ones of the same probe that depend on them."""
    chain = [first]
    for candidate in found[found.index(first) + 1 :]:
        if candidate.probe == first.probe and candidate.confirmed_by is None and len(chain) < CHAIN:
            if any(parent in chain for parent in candidate.parents):
                chain.append(candidate)
    return chain


def _producers(first: Found, found: Sequence[Found]) -> list[Found]:
    """The calls that made the first one's inputs. What they gave may be an inner value of the reference's operator."""
    inputs = {id(i) for i in first.call.inputs}
    before = found[: found.index(first)]
    return [f for f in before if f.probe == first.probe and any(id(o) in inputs for o in f.call.outputs)]


def _repair(
    program: Program,
    weights: Weights,
    probes: Sequence[Probe],
    tolerance: float,
    changes: Changes,
    chain: Sequence[Found],
    found: Sequence[Found],
) -> tuple[Found, dict[str, Any]] | None:
    """The change of one operator's attributes (one of them, else two) with which all of the chain is found.

    Where nothing does that (two operators are wrong), the change that makes the first call known, and most after it.
    """
    producers = _producers(chain[0], found)
    best: tuple[int, Found, dict[str, Any]] | None = None
    for grid in (_closed, _numeric, _pairs):
        for culprit in (*chain, *producers):
            replayed = [culprit, *chain] if culprit in producers else chain
            for change in grid(culprit.call.use, program):
                if not _is_legal(culprit.call, change):
                    continue
                tried = changes | {culprit.name: changes.get(culprit.name, {}) | change}
                known = _replay(program, weights, probes, tolerance, tried, replayed, found)
                if known == len(replayed):
                    return culprit, change
                if known > (best[0] if best is not None else 0) and culprit is chain[0]:
                    best = known, culprit, change
        if best is not None:
            return best[1:]
    return None


def _replay(
    program: Program,
    weights: Weights,
    probes: Sequence[Probe],
    tolerance: float,
    changes: Changes,
    chain: Sequence[Found],
    found: Sequence[Found],
) -> int:
    """How many of the chain's calls give values of the reference when computed again with `changes`.

    Only the chain's operators run, on the probes up to the chain's own, so that their state is right.
    """
    paths = {f.call.use.path for f in chain}
    try:
        interpreter = Interpreter(program, weights, changes)
    except ValidationError:  # legal for this layer's operator, not for another's of the same name
        return 0
    known: list[bool] = []
    for number, probe in enumerate(probes[: chain[0].probe + 1]):
        interpreter.begin(list(probe.ids))
        replaced: dict[int, Any] = {}
        for record in found:
            if record.probe != number or record.call.use.path not in paths:
                continue
            inputs = tuple(replaced.get(id(i), i) for i in record.call.inputs)
            try:
                outputs = interpreter.compute(record.call.use, record.call.method, inputs)
            except OperatorFailure:
                return sum(known)
            replaced |= {id(old): new for old, new in zip(record.call.outputs, outputs, strict=False)}
            if record in chain:
                given = [t for output in outputs for t in tensors_of(output)]
                known.append(bool(given) and all(probe.find(t, tolerance) for t in given))
    # An operator whose own values the reference never holds is known through the next one.
    last = max((i for i, held in enumerate(known) if held), default=-1)
    return last + 1


def _closed(use: OperatorUse, program: Program) -> Iterator[dict[str, Any]]:
    return ({name: v} for name, values in candidates(use.attributes).items() for v in values)


def _numeric(use: OperatorUse, program: Program) -> Iterator[dict[str, Any]]:
    return ({name: v} for name, values in numeric_candidates(use.attributes, program.config).items() for v in values)


def _pairs(use: OperatorUse, program: Program) -> Iterator[dict[str, Any]]:
    singles = [*_closed(use, program)]
    return islice((a | b for a, b in combinations(singles, 2) if set(a) != set(b)), MAX_PAIRS)


def _is_legal(call: OperatorCall, change: Mapping[str, Any]) -> bool:
    """Whether the kind allows the change, gives as many outputs, and needs no weights that the operator lacks."""
    kind = get_kind(call.use.kind)
    try:
        attributes = changed(call.use, change)
        outputs = kind.methods[call.method].output_names(attributes)
    except ValueError:  # pydantic's ValidationError is one
        return False
    owned = kind.weights(call.use.attributes)
    fits = all(name in owned and owned[name].shape == w.shape for name, w in kind.weights(attributes).items())
    return fits and len(outputs) == len(call.outputs or outputs)


def candidates(attributes: Attributes) -> dict[str, list[Any]]:
    """Values to try instead of an attribute's own: what its kind lists, and every value of a closed type."""
    listed = type(attributes).alternatives()
    result: dict[str, list[Any]] = {}
    for name, field in type(attributes).model_fields.items():
        values = list(listed.get(name, ()))
        if field.annotation is bool:
            values += [True, False]
        elif typing.get_origin(field.annotation) is Literal:
            values += typing.get_args(field.annotation)
        result[name] = _others(values, getattr(attributes, name))
    return result


def numeric_candidates(attributes: Attributes, config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """For numbers: the default, and the config's numbers of that type, since a recipe may have taken the wrong key.

    For fractions also n**-0.5 of every n in the config and the attributes, the usual scale of attention.
    """
    numbers = list(_numbers(config))
    result: dict[str, list[Any]] = {}
    for name, field in type(attributes).model_fields.items():
        own = getattr(attributes, name)
        if type(own) in (int, float):
            values = [field.default, *numbers]
            if isinstance(own, float):
                values += [n**-0.5 for n in (*numbers, *_numbers(attributes.model_dump())) if n > 1]
            result[name] = _others([v for v in values if type(v) is type(own) and v != 0], own)
    return result


def _others(values: Sequence[Any], own: Any) -> list[Any]:
    distinct = {(type(v).__name__, repr(v)): v for v in values}
    distinct.pop((type(own).__name__, repr(own)), None)
    return list(distinct.values())


def _numbers(config: Any) -> Iterator[int | float]:
    if isinstance(config, Mapping):
        for value in config.values():
            yield from _numbers(value)
    elif isinstance(config, int | float) and not isinstance(config, bool):
        yield config


def _blame(chain: Sequence[Found], probes: Sequence[Probe]) -> tuple[Found, _Verdict]:
    """The first operator of the chain that computes almost what the reference does; else the one that failed."""
    for found in chain:
        missing = [t for t, m in zip(_outputs(found), found.matches, strict=False) if m is None]
        near = [n for t in missing if (n := probes[found.probe].nearest(t)) is not None]
        if near:
            closest = min((match for match, _ in near), key=lambda match: match.error)
            text = (
                f"{found.call.use.path}: no value tried of its attributes reproduces the reference; "
                f"the nearest it computed is {closest.location}, at a relative error of {closest.error:.1e}"
            )
            return found, _Verdict(text, location=closest.location, error=closest.error)
    failed = next((f for f in chain if f.failure), None)
    if failed is not None:
        return failed, _Verdict(f"{failed.call.use.path}: {failed.failure}")
    path = chain[0].call.use.path
    return chain[0], _Verdict(f"{path}: what it computes is nowhere in the reference, nor is what follows from it")


def _moved(location: str, culprit: Found, other: Found) -> str:
    """The location in another layer of what was seen in the culprit's."""
    return location.replace(f"layers.{culprit.call.use.layer}.", f"layers.{other.call.use.layer}.", 1)


def _outputs(found: Found) -> list[Tensor]:
    return [t for output in found.call.outputs for t in tensors_of(output)]


def _only_chooses(first: Found, found: Sequence[Found]) -> bool:
    """Whether the reference never holds a value like this call's, and the calls that read it chose as it did."""
    readers = [f for f in found if first in f.parents]
    return bool(readers) and all(f.confirmed_by is f for f in readers) and not first.failure


def _proofs(
    found: Sequence[Found],
    probes: Sequence[Probe],
    verdicts: Mapping[str, _Verdict],
    unseen: Collection[str],
    program: Program,
) -> dict[str, Proof]:
    proofs: dict[str, Proof] = {}
    blamed = next(iter((*verdicts, *unseen)), "")
    for name in dict.fromkeys(use.name for use in program.uses()):
        calls = [f for f in found if f.name == name]
        proof = _proof(calls, probes)
        if name in verdicts:
            verdict = verdicts[name]
            proof = replace(
                proof,
                proved=False,
                contradiction=verdict.text,
                wrong=verdict.wrong,
                location=verdict.location or proof.location,
                error=verdict.error,
            )
        elif name in unseen:
            detail = "only its part in a choice shows, and the choice is the reference's"
            proof = replace(proof, proved=False, error=None, detail=detail)
        elif not proof.proved:
            proof = replace(proof, detail=f"not tested: it follows {blamed}, which the reference does not reproduce")
        proofs[name] = proof
    return proofs


def _proof(calls: Sequence[Found], probes: Sequence[Probe]) -> Proof:
    confirmed = bool(calls) and all(f.proved for f in calls)
    matches = [m for f in calls for m in f.matches if m is not None]
    own = bool(calls) and all(f.own for f in calls)
    others = dict.fromkeys(f.confirmed_by.name for f in calls if f.confirmed_by is not None and f.confirmed_by is not f)
    detail = "its outputs are the reference's" if own else f"proved together with {', '.join(others)}"
    return Proof(
        proved=confirmed,
        location=matches[0].location if matches else "",
        error=max((m.error for m in matches), default=None) if confirmed else None,
        probes=tuple(dict.fromkeys(probes[f.probe].name for f in calls)),
        detail=detail if confirmed else "",
    )
