"""The clauses that every Triton implementation has."""

from day0.artifacts.contract import Clause, OneOf

ON_GPU = (
    Clause("device", "device", "type", OneOf(("cuda",)), "Triton compiles it for CUDA devices"),
    Clause("triton", "device", "triton", OneOf((True,)), "Triton compiles it, and is not here for this device"),
)
