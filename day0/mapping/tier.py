"""How much of a model runs on kernels: tier A (fused), B (mixed) or C (nothing: no recipe joins the operators)."""

from collections.abc import Sequence
from typing import Literal

from day0.artifacts.inventory import Operator
from day0.artifacts.plan import NOTHING, PlanLine
from day0.mapping.choose import CANNOT_RUN

Tier = Literal["A", "B", "C"]


def tier_of(operators: Sequence[Operator], lines: Sequence[PlanLine], *, recipe: str) -> tuple[Tier, str]:
    """The tier and the reason in words.

    A: every operator has an implementation, every stateful one a fused kernel in all phases. C: no package can be
    written, since no recipe joins the operators. B: all between; it runs where every operator has an implementation.
    """
    if not recipe:
        return "C", f"no recipe says how the operators are joined: {CANNOT_RUN}"
    used = {(line.operator, line.implementation) for line in lines}
    unknown = [o for o in operators if (o.name, NOTHING) in used]
    if unknown:
        return "B", f"no implementation computes {_names([o.name for o in unknown])}: {CANNOT_RUN}"
    fallback = {line.operator for line in lines if line.fallback}
    slow = [o.name for o in operators if o.state and o.name in fallback]
    if slow:
        return "B", f"every operator is known, but {_names(slow)} hold state and run on the PyTorch reference"
    return "A", "every stateful operator has a fused kernel in every phase"


def _names(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
