"""Attributes, weights and state of the kind `sparse_attention`."""

from pydantic import Field

from day0.kernels.common.attention_memory import STATE, WEIGHTS, AttentionMemoryAttributes, components, weights

__all__ = ["STATE", "WEIGHTS", "SparseAttentionAttributes", "components", "weights"]


class SparseAttentionAttributes(AttentionMemoryAttributes):
    """Attention to chosen positions; `width` is how many columns the choice has, used or not."""

    width: int = Field(ge=1)
