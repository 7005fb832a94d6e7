"""align.json: how close a package is to its reference, gate by gate."""

import math
import sys
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from day0.artifacts.base import Artifact, Record

Verdict = Literal["holds", "does not hold", "inconclusive"]
# "propagated": on the package's own activations; "isolated": each layer fed what the reference's layer was fed.
Mode = Literal["propagated", "isolated"]


def json_number(value: float) -> float:
    """JSON has no infinity and no NaN: what is infinitely wrong is the largest float."""
    return value if math.isfinite(value) else math.copysign(sys.float_info.max, value)


Figure = Annotated[float, AfterValidator(json_number)]


class Row(Record):
    """One tensor compared: an operator's output, the scores of a choice that it makes (port "scores of experts"), a
    layer's output, or the logits.

    Errors are relative L2 against the float64 reference. `ratio` (precision rows) is error over the reference's own
    error in the same dtype. `error` is None where the reference never materialises the tensor: such an operator is
    judged by the first result downstream that the reference has, which `note` names.
    """

    gate: str
    prompt: str
    mode: Mode
    layer: int | None
    operator: str  # "layer" and "logits" for those; "input": what the first layer is given
    kind: str
    port: str
    error: Figure | None
    bound: Figure
    ratio: Figure | None = None
    verdict: Verdict
    location: str = ""  # where the reference holds the tensor
    note: str = ""


class Gate(Record):
    """One question with its answer. `checked` and `failing` count rows or cells."""

    name: str
    verdict: Verdict
    detail: str
    checked: int = 0
    failing: int = 0
    worst: Figure | None = None  # largest error / bound among the rows


class SelfCheck(Record):
    """The reference against itself."""

    name: Literal["cached decode", "chunked prefill"]
    dtype: str
    holds: bool
    error: Figure
    bound: Figure
    detail: str = ""
    declared: str = ""  # the recipe's reason, where it says that this check fails


class Exclusion(Record):
    """What was not compared, and why."""

    cell: str
    reason: str
    error: Figure | None = None


class FirstBad(Record):
    """The first operator whose inputs agree with the reference and whose output does not.

    `together_with`: operators between the last agreeing tensors and this output, whose own results the reference never
    materialises, so that the fault may be theirs.
    """

    layer: int | None
    operator: str
    kind: str
    port: str
    prompt: str
    error: Figure | None
    nearest: str = ""  # the reference tensor closest to the wrong one
    together_with: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = self.operator if self.layer is None else f"layer {self.layer}, {self.operator}"
        error = "no tensor of the reference is near" if self.error is None else f"relative error {self.error:.2e}"
        others = f"; together with {', '.join(self.together_with)}" if self.together_with else ""
        return f"{where} ({self.kind}): its inputs agree, its output {self.port} does not: {error}{others}"


class GreedyCell(Record):
    """The reference's greedy continuation, and what the package prefers at each of its tokens.

    After a tie the package goes on from the reference's token. `ties`: the tokens that sit on one. The figures are
    those of the token that decides: the bug, or else the first tie. Margins are best minus second-best logit.
    """

    prompt: str
    tokens: int
    equal: bool
    first_difference: int | None = None
    package_token: int | None = None
    reference_token: int | None = None
    package_margin: Figure | None = None
    reference_margin: Figure | None = None
    noise: Figure | None = None  # how far the reference's logits are from their float64 selves at that step
    ties: tuple[int, ...] = ()
    classified: Literal["equal", "tie", "bug"]


class InvarianceCell(Record):
    """The package against itself: one way of running the same tokens. Relative L2 of the logits and the worst state."""

    name: str
    error: Figure
    state_error: Figure
    worst_state: str = ""
    bound: Figure
    verdict: Verdict


class MatrixCell(Record):
    """One meeting of the engine's features, against the plain run of the same prompt.

    `worst_ratio`: the largest of a state component's error against float64 over what is allowed. `bit_exact`: whether
    the state is that of the same steps alone, where these have the same shapes.
    """

    cell: dict[str, str]
    name: str
    tokens_equal: bool
    bit_exact: bool | None = None
    worst_state: str = ""
    worst_ratio: Figure
    verdict: Verdict
    detail: str = ""


class Checksum(Record):
    """A state component's content after a prompt: its L2 norm and its product with a fixed random vector."""

    component: str
    norm: Figure
    projection: Figure


class UnstableRows(Record):
    """Tokens left out of a precision ratio: a router or index choice of theirs sits on a tie.

    That rounding moves the row is shown by the reference, which moves it itself, or by the scores at the choice's cut.
    """

    dtype: str
    mode: Mode
    prompt: str
    rows: tuple[int, ...]  # at most 32 of them
    reference: int  # how many rows the reference itself moves by rounding alone
    package: int  # how many the package alone moves
    total: int


class Prompt(Record):
    name: str
    ids: tuple[int, ...]
    note: str = ""


class Alignment(Artifact):
    """What `day0 align` found."""

    FILE: ClassVar[str] = "align.json"

    model: str
    holds: Verdict
    gates: tuple[Gate, ...]
    first_bad: FirstBad | None = None
    also_bad: tuple[FirstBad, ...] = ()  # of other layers, each judged on the reference's own layer input
    self_checks: tuple[SelfCheck, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    rows: tuple[Row, ...] = ()  # per gate, operator and mode the worst row, and every failing row up to a limit
    rows_checked: int = 0
    unstable: tuple[UnstableRows, ...] = ()
    greedy: tuple[GreedyCell, ...] = ()
    invariance: tuple[InvarianceCell, ...] = ()
    state_checksums: tuple[Checksum, ...] = ()
    matrix: tuple[MatrixCell, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    conditions: tuple[str, ...] = ()  # random weights, reduced layers, ...: shown wherever a figure is
    warnings: tuple[str, ...] = ()
