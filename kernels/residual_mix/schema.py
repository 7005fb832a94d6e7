"""Attributes and weights of the kind `residual_mix`: how branch outputs enter the residual stream.

One operator plays one role. A "branch" operator stands around one branch (a mixer or an MLP):

    x, mix = branch.pre(h)              h = branch.post(h, y, mix)          h = branch(h, y)  (scheme "add")

A "boundary" operator stands where the stream begins and where it ends:

    h = boundary.expand(x)              x = boundary.collapse(h)

The stream h is [N, width] in scheme "add" and [N, streams or sources, width] in the others.
"""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator

from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

MHC = "scheme == 'mhc' and role == 'branch'"
WEIGHTS = {
    "fn": Shown("[(2 + streams) * streams, streams * width]", MHC, "of the normed streams: pre, post and mixing gates"),
    "base": Shown("[(2 + streams) * streams]", MHC, "added to the gates", "float32"),
    "scale": Shown("[3]", MHC, "factors of the pre, post and mixing gates", "float32"),
    "norm": Shown("[streams * width]", "scheme == 'gated_streams'"),
    "down": Shown("[rank, streams * width]", "scheme == 'gated_streams'"),
    "up": Shown("[streams * width, rank]", "scheme == 'gated_streams'"),
    "inject": Shown("[streams, streams * width]", "scheme == 'gated_streams' and role == 'branch'"),
    "query": Shown("[width]", "scheme == 'attention'"),
    "key_weight": Shown("[width]", "scheme == 'attention' and weighted_keys", "of the keys' RMS norm"),
}


class ResidualMixAttributes(Attributes):
    """Attributes that a scheme and role do not use must be left at their default; counts that they use must be set."""

    scheme: Literal["add", "mhc", "gated_streams", "attention"] = Field(
        description='"add": h + multiplier * y; "mhc": streams mixed by a doubly stochastic matrix; "gated_streams": '
        'streams read through low-rank channel gates; "attention": softmax over earlier outputs (Attention Residuals)'
    )
    role: Literal["branch", "boundary"] = Field(
        default="branch", description="around one branch, or where the stream begins and ends"
    )
    width: Size = Field(description="channels of one stream or source")
    multiplier: float = Field(default=1.0, description="add: factor of the branch's output")
    streams: int = Field(default=0, description="mhc, gated_streams: how many streams there are")
    norm_eps: float = Field(
        default=0.0,
        description="mhc branch, gated_streams, attention: eps of the RMS norm in front of the gates or keys",
    )
    sinkhorn_iterations: int = Field(default=0, description="mhc branch: column normalisations")
    mix_eps: float = Field(
        default=0.0,
        ge=0.0,
        description="mhc branch: added to the pre gates, the mixing matrix and the Sinkhorn divisors",
    )
    collapse: Literal["mean", "sum"] = Field(default="mean", description="mhc boundary: how the streams become one")
    rank: int = Field(default=0, description="gated_streams: inner width of the gate projection")
    sources: int = Field(default=0, description="attention: how many sources the operator reads")
    scale: float = Field(default=1.0, description="attention: factor of the scores")
    weighted_keys: bool = Field(default=False, description="attention: the keys' RMS norm has a weight")
    values: Literal["raw", "normed"] = Field(
        default="raw", description="attention: what is mixed, the sources or their RMS norms"
    )
    opens_block: bool = Field(default=False, description="attention branch: its output becomes a source of its own")

    @model_validator(mode="after")
    def _exactly_what_the_scheme_uses(self) -> "ResidualMixAttributes":
        where = f"scheme {self.scheme}, role {self.role}"
        if (self.scheme, self.role) not in USES:
            raise ValueError(f"{where}: there is nothing to do; only branch operators exist")
        used = USES[self.scheme, self.role]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in used and name in NEEDED and not value > 0:
                raise ValueError(f"{where} needs {name} > 0, got {value}")
            if name not in (*used, "scheme", "role", "width") and value != field.default:
                raise ValueError(f"{where} does not use {name}")
        return self

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {
            "multiplier": (1.0,),
            "norm_eps": (1e-5, 1e-6, 1e-8),
            "sinkhorn_iterations": (1, 5, 10, 20),
            "mix_eps": (0.0, 1e-6, 1e-5),
            "collapse": ("mean", "sum"),
            "scale": (1.0,),
            "values": ("raw", "normed"),
            "opens_block": (True, False),
        }


_READS = ("sources", "norm_eps", "scale", "weighted_keys", "values")
USES: dict[tuple[str, str], tuple[str, ...]] = {
    ("add", "branch"): ("multiplier",),
    ("mhc", "branch"): ("streams", "norm_eps", "sinkhorn_iterations", "mix_eps"),
    ("mhc", "boundary"): ("streams", "collapse"),
    ("gated_streams", "branch"): ("streams", "norm_eps", "rank"),
    ("gated_streams", "boundary"): ("streams", "norm_eps", "rank"),
    ("attention", "branch"): (*_READS, "opens_block"),
    ("attention", "boundary"): _READS,
}
NEEDED = ("streams", "norm_eps", "sinkhorn_iterations", "rank", "sources")


def weights(a: ResidualMixAttributes) -> dict[str, Weight]:
    branch = a.role == "branch"
    channels = a.streams * a.width
    if a.scheme == "mhc" and branch:
        mixes = (2 + a.streams) * a.streams
        return {
            "fn": Weight((mixes, channels)),
            "base": Weight((mixes,), dtype="float32"),
            "scale": Weight((3,), dtype="float32"),
        }
    if a.scheme == "gated_streams":
        gate = {"norm": Weight((channels,)), "down": Weight((a.rank, channels)), "up": Weight((channels, a.rank))}
        return gate | ({"inject": Weight((a.streams, channels))} if branch else {})
    if a.scheme == "attention":
        query = {"query": Weight((a.width,))}
        return query | ({"key_weight": Weight((a.width,))} if a.weighted_keys else {})
    return {}


def outputs(method: str, names: tuple[str, ...]) -> Callable[[ResidualMixAttributes], tuple[str, ...]]:
    """Output names of a method, for operators that have it. The result raises ValueError for those that do not."""

    def of(a: ResidualMixAttributes) -> tuple[str, ...]:
        if method not in methods(a):
            known = ", ".join(m or '""' for m in methods(a))
            raise ValueError(f"scheme {a.scheme}, role {a.role} has no method {method!r}; it has {known}")
        return names

    return of


def methods(a: ResidualMixAttributes) -> tuple[str, ...]:
    """The methods that an operator of this scheme and role has."""
    if a.scheme == "add":
        return ("",)
    return ("pre", "post") if a.role == "branch" else ("expand", "collapse")
