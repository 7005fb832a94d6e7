"""What a request says of tools: what the template gets to see, and what cannot be promised."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from day0.serve.errors import ApiError
from day0.serve.schemas import ChatRequest, TokenizeRequest, ToolCalled
from day0.serve.service import Service
from day0.serve.tool_calls import Schemas


def tools_of(service: Service, asked: ChatRequest | TokenizeRequest) -> list[dict[str, Any]] | None:
    """The tools that the model may call, as templates know them. None where there are none, or it shall call none.

    Raises ApiError: what this server cannot hold a model to, or this model does not know.
    """
    if asked.tools is None:
        if asked.tool_choice is not None:
            raise _wrong("tool_choice", "there are no tools")
        return None
    if asked.tool_choice not in (None, "auto", "none"):
        what = "tool_choice can be auto and none: this server cannot hold a model to calling a tool"
        raise ApiError(400, what, param="tool_choice", code="unsupported_parameter")
    if not asked.tools:
        raise _wrong("tools", "there are none: leave it out")
    names = [tool.function.name for tool in asked.tools]
    if len(set(names)) < len(names):
        raise _wrong("tools", "two functions have the same name")
    if any(tool.function.strict for tool in asked.tools):
        what = "strict must not be true: this server cannot hold a model to a schema"
        raise ApiError(400, what, param="tools", code="unsupported_parameter")
    if asked.tool_choice == "none":
        return None  # what it does not see it does not call
    template = service.tokenizer("tools").chat_template or ""
    if service.served.chat.tool_calls is None or "tools" not in template:
        which = "the recipe does not say how it writes calls" if "tools" in template else "its chat template has none"
        raise ApiError(400, f"this model takes no tools: {which}", param="tools", code="unsupported_parameter")
    return [tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}}) for tool in asked.tools]


def schemas_of(tools: Sequence[Mapping[str, Any]] | None) -> Schemas | None:
    """The JSON schema of each tool's arguments, by its name."""
    if tools is None:
        return None
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


def calls_for_template(calls: Sequence[ToolCalled]) -> list[dict[str, Any]]:
    """Calls made before, their arguments as objects: templates write them in the model's own form."""
    found = []
    for call in calls:
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise _wrong("messages", f"the arguments of {call.function.name[:64]} are no JSON object")
        function = {"name": call.function.name, "arguments": arguments}
        found.append({"id": call.id, "type": "function", "function": function})
    return found


def _wrong(param: str, what: str) -> ApiError:
    return ApiError(400, f"{param}: {what}", param=param, code="invalid_value")
