"""inventory.json: the operators of a model and how each is known."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from day0.artifacts.alignment import Verdict
from day0.artifacts.base import Artifact, Record
from day0.artifacts.layout import Component

Status = Literal["reuse", "modify", "new"]
Established = Literal["proved", "declared", "inferred", "contradicted"]


class Evidence(Record):
    """How an operator's identity was established, and by what."""

    established: Established
    detail: str
    # proved: where in the reference the outputs were found ("Glm5...Attention.forward: core_attn_out"), over how many
    # probes, and the largest relative L2 error seen. Contradicted: the nearest value's place and error, if one is near.
    location: str = ""
    probes: tuple[str, ...] = ()
    error: float | None = None
    # a near miss: the attribute that differs, what the recipe says and what the reference computes
    contradiction: str = ""
    wrong: tuple[str, ...] = ()  # the attributes that differ


class WeightUse(Record):
    """One canonical weight of an operator and where it comes from in the checkpoint (one layer's example)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    tensors: tuple[str, ...]
    transform: str = ""


class StepCost(Record):
    """Cost of all of an operator's layers in one step of stated work."""

    flops: float
    bytes_read: float
    bytes_written: float


class Operator(Record):
    """One semantic computation, in all the layers where it stands with the same attributes."""

    name: str
    block: str
    kind: str
    attributes: dict[str, Any]
    layers: tuple[int, ...]  # empty: it stands outside the layers
    inputs: tuple[str, ...] = ()  # names of the values it reads, as the recipe's steps call them
    outputs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()  # operators whose outputs it reads
    weights: tuple[WeightUse, ...] = ()
    parameters: int = 0
    state: tuple[Component, ...] = ()  # of one layer
    prefill: StepCost | None = None
    decode: StepCost | None = None
    status: Status
    refusals: tuple[str, ...] = ()
    evidence: Evidence


class ConfigKey(Record):
    """One config key and what became of it. `read_by`: "recipe", "reference", or both."""

    key: str
    value: Any
    audit: Literal["consumed", "ignored", "contradicted"]
    read_by: tuple[str, ...] = ()
    detail: str = ""


class TensorAudit(Record):
    """What became of the checkpoint's tensors. Every tensor stands in exactly one of the three."""

    claimed: int
    left_out: dict[str, str] = {}  # pattern -> reason
    left_out_count: int = 0
    unclaimed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    shape_mismatch: tuple[str, ...] = ()


class TensorGroup(Record):
    """Tensors of the checkpoint that are alike but for the numbers in their names, and the operator that owns them.

    `name` has "*" for each number; `layers` are the values of the first one; "" as `operator`: no module of the
    reference has that name, since it goes by others once it is loaded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layers: tuple[int, ...]
    count: int
    operator: str = ""


class Fusion(Record):
    """Operators that follow each other and could run as one launch, and why that helps."""

    operators: tuple[str, ...]
    reason: str


class Reference(Record):
    """The reference implementation: where from, which revision, and the hash of its source."""

    kind: Literal["transformers", "remote_code", "none"]
    class_name: str = ""
    revision: str = ""
    hash: str = ""


class Inventory(Artifact):
    """What `day0 decompose` found."""

    FILE: ClassVar[str] = "inventory.json"

    model: str
    source: str
    model_hash: str
    recipe: str = ""  # name of the recipe, empty when none matched
    reference: Reference
    config: dict[str, Any]
    layers: int
    schedule: tuple[str, ...]  # per layer, in words: the blocks chosen ("kda + moe")
    parameters: int
    parameters_active: int | None = None  # None: not known without a recipe
    weights_dtype: str
    operators: tuple[Operator, ...]
    config_audit: tuple[ConfigKey, ...] = ()
    tensor_audit: TensorAudit
    tensors: tuple[TensorGroup, ...] = ()  # without a recipe: every tensor; with one, the operators' weights say them
    fusions: tuple[Fusion, ...] = ()
    work: dict[str, dict[str, int]] = Field(default_factory=dict)  # what prefill and decode costs were asked for
    warnings: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()  # what keeps it from holding, a line each
    undecided: tuple[str, ...] = ()  # why nothing can be said either way, a line each
    holds: bool = True

    @property
    def verdict(self) -> Verdict:
        """The gate's: what is undecided does not hold, but where a fault is found that alone decides."""
        if self.holds:
            return "holds"
        return "inconclusive" if self.undecided and not self.faults else "does not hold"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is not "holds", a line each."""
        return self.faults or self.undecided

    @property
    def objections(self) -> tuple[str, ...]:
        """The reasons as what follows from this inventory has to carry them."""
        said = "is inconclusive" if self.verdict == "inconclusive" else self.verdict
        return tuple(f"decompose {said}: {reason}" for reason in self.reasons)
