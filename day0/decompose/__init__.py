"""Evidence about a model -> its operator inventory."""

from day0.decompose.stage import Options, run

__all__ = ["Options", "run"]
