"""When an operator's outputs are not what the reference computed: which attribute, with which value, would make them so."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from pydantic import ValidationError

from day0.decompose.interpret import Weights, changed
from day0.decompose.proof import Found, Probe, Proof, search, tensors_of
from day0.kernels.interface.attributes import Attributes
from day0.kernels.registry import get_kind
from day0.language.program import OperatorUse, Program

MAX_REPAIRS = 8
# Operators after the first wrong one whose outputs are unknown too: the culprit is among them.
CHAIN = 4
MAX_PAIRS = 120

Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Verdict:
    text: str
    location: str = ""
    error: float | None = None


def prove_program(program: Program, weights: Weights, probes: Sequence[Probe], *, tolerance: float) -> dict[str, Proof]:
    """The proof, or what stands against it, of every operator of the program, by name.

    Wrong attributes are looked for one operator after the other, in the order of execution; each is replaced by the
    value that reproduces the reference, so that what comes after is judged on the reference's own inputs. Where no
    value does, the reference's nearest tensors take the place of the outputs.
    """
    changes: Changes = {}
    forced: set[tuple[str, str]] = set()
    verdicts: dict[str, _Verdict] = {}
    found: list[Found] = []
    for _ in range(MAX_REPAIRS):
        found = search(program, weights, probes, tolerance=tolerance, changes=changes, forced=forced)
        first = next((f for f in found if f.confirmed_by is None and f.call.key not in forced), None)
        if first is None:
            break
        chain = _chain(first, found)
        repair = _repair(program, weights, probes, tolerance, changes, forced, chain, found)
        if repair is not None:
            culprit, change = repair
            changes = changes | {culprit.name: changes.get(culprit.name, {}) | change}
            old = {name: getattr(culprit.call.use.attributes, name) for name in change}
            verdicts[culprit.name] = _Verdict(
                f"{culprit.call.use.path}: "
                + ", ".join(
                    f"{k} is {old[k]!r} in the recipe, the reference computes with {v!r}" for k, v in change.items()
                )
            )
            continue
        culprit, verdict = _blame(chain, probes)
        verdicts[culprit.name] = verdict
        if culprit.failure:
            break
        forced |= {f.call.key for f in found if f.name == culprit.name}
    return _proofs(found, probes, verdicts, program)


def _chain(first: Found, found: Sequence[Found]) -> list[Found]:
    """The first call whose outputs are unknown, and the next ones of the same probe that depend on them."""
    chain = [first]
    for candidate in found[found.index(first) + 1 :]:
        if candidate.probe == first.probe and candidate.confirmed_by is None and len(chain) < CHAIN:
            if any(parent in chain for parent in candidate.parents):
                chain.append(candidate)
    return chain


def _repair(
    program: Program,
    weights: Weights,
    probes: Sequence[Probe],
    tolerance: float,
    changes: Changes,
    forced: set[tuple[str, str]],
    chain: Sequence[Found],
    found: Sequence[Found],
) -> tuple[Found, dict[str, Any]] | None:
    """The change of one operator's attributes (one, else two) with which the first call of the chain is found."""
    first = chain[0]
    before = found[: found.index(first)]
    last_layer = max([c.call.use.layer for c in (*before, *chain) if c.call.use.layer is not None], default=0) + 1
    for pairs in (False, True):
        for culprit in chain:
            for change in _grid(culprit.call.use, program, pairs):
                tried = changes | {culprit.name: changes.get(culprit.name, {}) | change}
                again = search(
                    program,
                    weights,
                    probes[: first.probe + 1],
                    tolerance=tolerance,
                    changes=tried,
                    forced=forced,
                    last_layer=last_layer,
                )
                same = [f for f in again if f.probe == first.probe and f.call.key == first.call.key]
                if same and same[0].confirmed_by is not None:
                    return culprit, change
    return None


def _grid(use: OperatorUse, program: Program, pairs: bool) -> Iterator[dict[str, Any]]:
    """Other attribute values that are legal for the operator and need no weights it lacks: one changed, or two."""
    values = candidates(use.attributes, program.config)
    singles = [{name: value} for name, several in values.items() for value in several]
    changes: Iterator[dict[str, Any]] = iter(singles)
    if pairs:
        changes = (a | b for a, b in combinations(singles, 2) if set(a) != set(b))
    count = 0
    for change in changes:
        try:
            attributes = changed(use, change)
        except ValidationError:
            continue
        owned = get_kind(use.kind).weights(use.attributes)
        if all(
            name in owned and owned[name].shape == w.shape for name, w in get_kind(use.kind).weights(attributes).items()
        ):
            count += 1
            if pairs and count > MAX_PAIRS:
                return
            yield change


def candidates(attributes: Attributes, config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Values worth trying instead of each attribute's own.

    What the kind lists, every value of a closed type, and for numbers the config's numbers of the same type: a recipe
    that takes the wrong key is wrong by one of those.
    """
    listed = type(attributes).alternatives()
    numbers = list(_numbers(config))
    result: dict[str, list[Any]] = {}
    for name, field in type(attributes).model_fields.items():
        own = getattr(attributes, name)
        values = list(listed.get(name, ()))
        if field.annotation is bool:
            values += [True, False]
        elif typing.get_origin(field.annotation) is Literal:
            values += typing.get_args(field.annotation)
        elif field.annotation in (int, float):
            values += [field.default] if isinstance(field.default, int | float) else []
            values += [n for n in numbers if type(n) is field.annotation]
        kept = [v for v in values if v != own or type(v) is not type(own)]
        unique = list({(type(v).__name__, repr(v)): v for v in kept}.values())
        if unique:
            result[name] = unique
    return result


def _numbers(config: Any) -> Iterator[int | float]:
    if isinstance(config, Mapping):
        for value in config.values():
            yield from _numbers(value)
    elif isinstance(config, int | float) and not isinstance(config, bool):
        yield config


def _blame(chain: Sequence[Found], probes: Sequence[Probe]) -> tuple[Found, _Verdict]:
    """Which operator of the chain is nearest to something the reference computed, and how near."""
    best: tuple[Found, _Verdict] | None = None
    for found in chain:
        if found.failure:
            continue
        for output, match in zip(tensors_of(found.call.outputs), found.matches, strict=True):
            near = probes[found.probe].nearest(output) if match is None else None
            if near is None:
                continue
            closest = near[0]
            if best is None or closest.error < (best[1].error or 0.0):
                text = (
                    f"{found.call.use.path}: no value tried of its attributes reproduces the reference; "
                    f"the nearest it computed is {closest.location}, at a relative error of {closest.error:.1e}"
                )
                best = found, _Verdict(text, closest.location, closest.error)
    if best is not None:
        return best
    failed = next((f for f in chain if f.failure), None)
    if failed is not None:
        return failed, _Verdict(f"{failed.call.use.path}: {failed.failure}")
    path = chain[0].call.use.path
    return chain[0], _Verdict(f"{path}: what it computes is nowhere in the reference, nor is what follows from it")


def _proofs(
    found: Sequence[Found], probes: Sequence[Probe], verdicts: Mapping[str, _Verdict], program: Program
) -> dict[str, Proof]:
    proofs: dict[str, Proof] = {}
    blamed = next(iter(verdicts), "")
    for name in dict.fromkeys(use.name for use in program.uses()):
        calls = [f for f in found if f.name == name]
        proof = _proof(calls, probes)
        if name in verdicts:
            verdict = verdicts[name]
            proof = replace(
                proof,
                proved=False,
                contradiction=verdict.text,
                location=verdict.location or proof.location,
                error=verdict.error if verdict.error is not None else proof.error,
            )
        elif not proof.proved:
            proof = replace(proof, detail=f"not tested: it follows {blamed}, which the reference does not reproduce")
        proofs[name] = proof
    return proofs


def _proof(calls: Sequence[Found], probes: Sequence[Probe]) -> Proof:
    confirmed = bool(calls) and all(f.confirmed_by is not None for f in calls)
    matches = [m for f in calls for m in f.matches if m is not None]
    own = bool(calls) and all(all(f.matches) for f in calls)
    others = dict.fromkeys(f.confirmed_by.name for f in calls if f.confirmed_by is not None and f.confirmed_by is not f)
    detail = "its outputs are the reference's" if own else f"proved together with {', '.join(others)}"
    return Proof(
        proved=confirmed,
        location=matches[0].location if matches else "",
        error=max((m.error for m in matches), default=None),
        probes=tuple(dict.fromkeys(probes[f.probe].name for f in calls)),
        detail=detail if confirmed else "",
    )
