"""Attributes, weights and state of the kind `attention`."""

from day0.kernels.common.attention_memory import STATE, WEIGHTS, AttentionMemoryAttributes, components, weights

__all__ = ["STATE", "WEIGHTS", "AttentionAttributes", "components", "weights"]


class AttentionAttributes(AttentionMemoryAttributes):
    """Causal attention over everything remembered."""
