"""Evidence about a model -> its operator inventory."""

from day0.decompose.diff import Change, diff
from day0.decompose.stage import Options, run

__all__ = ["Change", "Options", "diff", "run"]
