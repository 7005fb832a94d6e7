"""plan.yaml: which implementation computes each operator in each phase, and why."""

from typing import Any, ClassVar, Literal

from day0.artifacts.base import Artifact, Record

Phase = Literal["prefill", "decode", "verify"]
NOTHING = "none"  # as an implementation: nothing computes the operator, and day0 cannot run it


class PlanLine(Record):
    """One operator in one phase."""

    operator: str
    kind: str
    phase: Phase
    implementation: str
    fallback: bool  # no fused kernel accepted it and the plain reference stands in; not where nothing computes it
    dtype: str
    reason: str
    refusals: tuple[str, ...] = ()


class FusionGroup(Record):
    operators: tuple[str, ...]
    implementation: str  # "" when no kernel computes the group yet
    reason: str


class Switch(Record):
    """When an operator takes its dense path: only where dense and sparse are the same function."""

    operator: str
    dense_while: str
    reason: str


class MemoryForecast(Record):
    """Does it fit. Bytes; `sequences_at` maps a context length to how many sequences of it fit.

    `longest_context`: tokens of one sequence alone, at most what the model was trained for; None: nothing bounds it.
    Without a recipe nobody knows what an operator keeps: what follows from that is None, and `fits` is False only
    where the weights alone are too large. `sequences_at` is empty then, and where a sequence keeps nothing.
    """

    device_bytes: int
    weights_bytes: int
    kv_bytes_per_token: float | None
    state_bytes_per_sequence: int | None
    workspace_bytes: int | None
    fits: bool | None
    longest_context: int | None
    sequences_at: dict[str, int]
    formula: str

    @property
    def known(self) -> bool:
        """Whether it is known what a sequence keeps."""
        return self.kv_bytes_per_token is not None


class Plan(Artifact):
    """What `day0 map` decided. Only `map` writes it."""

    FILE: ClassVar[str] = "plan.yaml"

    model: str
    device: dict[str, Any]
    tier: Literal["A", "B", "C"]
    tier_reason: str
    dtype: str
    lines: tuple[PlanLine, ...]
    fusion_groups: tuple[FusionGroup, ...] = ()
    switches: tuple[Switch, ...] = ()
    memory: MemoryForecast
    warnings: tuple[str, ...] = ()
