"""Contracts: what an implementation of a kind accepts, as named clauses, so that a refusal can name its line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Subject = Literal["attribute", "shape", "dtype", "device", "phase"]
# What a contract is held against: subject -> fact -> value.
Facts = Mapping[Subject, Mapping[str, Any]]


@dataclass(frozen=True)
class OneOf:
    """The value must be one of these."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return value in self.values

    def describe(self, value: Any) -> str:
        return f"{_written(value)} not in {self}"

    def __str__(self) -> str:
        return f"{{{', '.join(_written(v) for v in self.values)}}}"


def _written(value: Any) -> str:
    """A value as recipes and plans write it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Between:
    """The value must lie in [low, high]; None leaves a side open."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: Any) -> bool:
        return bool((self.low is None or value >= self.low) and (self.high is None or value <= self.high))

    def describe(self, value: Any) -> str:
        return f"{value} is outside {self}"

    def __str__(self) -> str:
        low = "" if self.low is None else f"{self.low} <= "
        high = "" if self.high is None else f" <= {self.high}"
        return f"{low}value{high}"


@dataclass(frozen=True)
class MultipleOf:
    """The value must be a positive multiple of `unit`."""

    unit: int

    def holds(self, value: Any) -> bool:
        return bool(value > 0 and value % self.unit == 0)

    def describe(self, value: Any) -> str:
        return f"{value} is no {self}"

    def __str__(self) -> str:
        return f"positive multiple of {self.unit}"


Allowed = OneOf | Between | MultipleOf


@dataclass(frozen=True)
class Clause:
    """One line of a contract: the named fact must be `allowed`, for `reason`."""

    id: str
    subject: Subject
    fact: str
    allowed: Allowed
    reason: str


@dataclass(frozen=True)
class Refusal:
    """A clause that does not hold, ready to be shown."""

    kind: str
    implementation: str
    clause: str
    fact: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.implementation}.{self.clause}: {self.text}"


@dataclass(frozen=True)
class Contract:
    """All clauses of one implementation. Facts a clause asks for and nobody gives are an error, never a pass."""

    kind: str
    implementation: str
    clauses: tuple[Clause, ...] = ()

    def __post_init__(self) -> None:
        ids = [c.id for c in self.clauses]
        repeated = sorted({i for i in ids if ids.count(i) > 1})
        if repeated:
            raise ValueError(f"{self.kind}/{self.implementation}: clause ids repeat: {', '.join(repeated)}")

    def refusals(self, facts: Facts) -> list[Refusal]:
        """The clauses that refuse, over the subjects present in `facts` ({"attribute": {...}, "dtype": {...}, ...}).

        Raises KeyError naming the clause when a present subject lacks the fact a clause asks for.
        """
        refused = []
        for clause in self.clauses:
            if clause.subject not in facts:
                continue
            known = facts[clause.subject]
            if clause.fact not in known:
                raise KeyError(f"{self.kind}/{self.implementation}.{clause.id} needs {clause.subject} {clause.fact!r}")
            value = known[clause.fact]
            if not clause.allowed.holds(value):
                text = clause.allowed.describe(value)
                refused.append(Refusal(self.kind, self.implementation, clause.id, clause.fact, text, clause.reason))
        return refused
