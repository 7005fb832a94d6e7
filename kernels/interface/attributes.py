"""The base of every kind's attribute schema."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=1)]
"""A count or an extent that is never nothing."""


class Attributes(BaseModel):
    """What distinguishes one operator of a kind from another: sizes and the algebra. Frozen; unknown keys are refused.

    A subclass marks the attributes that change the function computed without changing a weight's shape by giving them
    a closed type (bool, Literal, Enum); `alternatives` lists those, and decompose tries them when a proof nearly holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        """Values worth trying for each attribute when the recorded outputs differ: name -> candidate values.

        Numeric attributes (an eps, a scale) may be listed with the field's usual values. Default: none.
        """
        return {}
