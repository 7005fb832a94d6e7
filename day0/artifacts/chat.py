"""How a family writes answers: a recipe's `chat` section, which the server reads answers by."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Markers(_Section):
    """What stands before and after a part of an answer, as text; the model writes both."""

    start: str = Field(min_length=1)
    end: str = Field(min_length=1)


class ToolCallMarkers(Markers):
    """Around one call, and how the call is written between: any of `forms`, which begin differently.

    json: an object of name and arguments. function_parameters: `<function=name>`, for each argument
    `<parameter=name>value</parameter>`, and `</function>`.
    """

    forms: tuple[Literal["json", "function_parameters"], ...] = Field(min_length=1)


class Chat(_Section):
    """How the family writes what is not the answer's text. Prompts are the chat template's matter, not the recipe's."""

    reasoning: Markers | None = None
    tool_calls: ToolCallMarkers | None = None

    @model_validator(mode="after")
    def _markers_differ(self) -> Self:
        found = [part for part in (self.reasoning, self.tool_calls) if part is not None]
        markers = [marker for part in found for marker in (part.start, part.end)]
        # The one that is complete first would hide the other.
        if any(a != b and a in b for a in markers for b in markers) or len(set(markers)) < len(markers):
            raise ValueError("a marker is part of another one")
        if any(marker != marker.strip() for marker in markers):
            raise ValueError("a marker begins or ends with white space, which around markers does not count")
        return self
