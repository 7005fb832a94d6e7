"""Which implementation computes an operator in a phase: the first whose contract accepts it, fused ones first."""

from dataclasses import dataclass
from typing import Any

from day0.artifacts.contract import Facts, Refusal, Subject
from day0.artifacts.inventory import Operator
from day0.artifacts.layout import PAGE_TOKENS
from day0.artifacts.plan import NOTHING, Phase, PlanLine
from day0.kernels.interface.attributes import Attributes
from day0.kernels.interface.kind import Implementation, Kind
from day0.kernels.registry import get_kind, kind_names
from day0.mapping.device import Device
from day0.mapping.options import MapOptions

PHASES: tuple[Phase, ...] = ("prefill", "decode", "verify")
PLAIN = "torch"  # the plain PyTorch implementation that every kind has; "torch_<form>" are its other forms
CANNOT_RUN = "day0 cannot run it yet"


@dataclass(frozen=True)
class Target:
    """Where and how operators are to run."""

    device: Device
    dtype: str
    options: MapOptions


def contract_facts(attributes: Attributes, target: Target, phase: Phase) -> dict[Subject, dict[str, Any]]:
    """Everything a contract's clauses may ask for. `capability` is 0 where there is no CUDA."""
    tokens = {"prefill": target.options.prefill_tokens, "decode": 1, "verify": target.options.verify_tokens}
    return {
        "attribute": {name: getattr(attributes, name) for name in type(attributes).model_fields},
        "shape": {"page_tokens": PAGE_TOKENS, "tokens_per_sequence": tokens[phase]},
        "dtype": {"activation": target.dtype, "weight": target.dtype},
        "device": {
            "type": target.device.type,
            "name": target.device.device,
            "capability": target.device.capability or 0.0,
            "triton": target.device.triton,
        },
        "phase": {"phase": phase},
    }


def choose(operator: Operator, target: Target) -> list[PlanLine]:
    """The plan's lines of one operator, one per phase."""
    kind = kind_of(operator)
    if kind is None:
        reason = f"module {operator.kind}: no recipe says which kind it is: {CANNOT_RUN}"
        return [_line(operator, phase, target, NOTHING, reason) for phase in PHASES]
    attributes = kind.parse(operator.attributes)
    return [_choose(operator, kind, attributes, target, phase) for phase in PHASES]


def kind_of(operator: Operator) -> Kind[Any] | None:
    """The operator's kind; None for a module of the reference, which may be named like a kind but is none."""
    if operator.status == "new" or operator.kind not in kind_names():
        return None
    return get_kind(operator.kind)


def by_preference(kind: Kind[Any]) -> list[Implementation]:
    """A kind's implementations: fused ones, then special forms of the PyTorch one, then the plain one."""
    return sorted(kind.implementations, key=lambda i: (not is_fused(i.name), i.name == PLAIN))


def is_fused(implementation: str) -> bool:
    """Whether an implementation is a kernel of ours, rather than PyTorch or nothing at all."""
    return implementation not in (PLAIN, NOTHING) and not implementation.startswith(f"{PLAIN}_")


def _choose(operator: Operator, kind: Kind[Any], attributes: Attributes, target: Target, phase: Phase) -> PlanLine:
    facts = contract_facts(attributes, target, phase)
    refusals: list[Refusal] = []
    for implementation in by_preference(kind):
        refused = implementation.contract.refusals(facts)
        if not refused:
            fused = is_fused(implementation.name)
            reason = "its contract accepts every attribute" if fused else _stand_in(kind, facts, refusals)
            return _line(operator, phase, target, implementation.name, reason, refusals)
        refusals += refused
    reason = f"no implementation accepts it, the PyTorch reference neither: {CANNOT_RUN}"
    return _line(operator, phase, target, NOTHING, reason, refusals)


def _stand_in(kind: Kind[Any], facts: Facts, refusals: list[Refusal]) -> str:
    fused = [implementation for implementation in kind.implementations if is_fused(implementation.name)]
    if not fused:
        return "no fused kernel for this kind yet; the PyTorch reference stands in"
    by_device = [implementation.contract.refusals({"device": facts["device"]}) for implementation in fused]
    if all(by_device):  # then no other clause matters: on another device it would be asked for other facts
        refusals = [refused[0] for refused in by_device]
    causes = "; ".join(dict.fromkeys(refusal.reason for refusal in refusals if is_fused(refusal.implementation)))
    return f"no fused kernel accepts it ({causes}); the PyTorch reference stands in"


def _line(
    operator: Operator,
    phase: Phase,
    target: Target,
    implementation: str,
    reason: str,
    refusals: list[Refusal] | None = None,
) -> PlanLine:
    return PlanLine(
        operator=operator.name,
        kind=operator.kind,
        phase=phase,
        implementation=implementation,
        fallback=implementation != NOTHING and not is_fused(implementation),
        dtype=target.dtype,
        reason=reason,
        refusals=tuple(str(refusal) for refusal in refusals or ()),
    )


def switch_rule(operator: Operator) -> str | None:
    """When the operator's dense path computes what its sparse path does; None when it has one path."""
    kind = kind_of(operator)
    return None if kind is None else kind.switch(kind.parse(operator.attributes))
