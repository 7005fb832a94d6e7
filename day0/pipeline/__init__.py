"""The whole line: each stage as a step on a workspace, and all of them in order. The only room that imports stages."""

from day0.pipeline.baseline import check, store_baseline
from day0.pipeline.line import Line, Outcome
from day0.pipeline.open import inventory_changes, look_at_line, open_line, open_model
from day0.pipeline.options import RunOptions
from day0.pipeline.prompts import read_prompts
from day0.pipeline.sampling import Sample, sample, sample_batch

__all__ = [
    "Line",
    "Outcome",
    "RunOptions",
    "Sample",
    "check",
    "inventory_changes",
    "look_at_line",
    "open_line",
    "open_model",
    "read_prompts",
    "sample",
    "sample_batch",
    "store_baseline",
]
