"""Answers taken apart as they come: reasoning, text and tool calls, by the markers of a recipe's `chat` section."""

from dataclasses import dataclass
from typing import Literal

from day0.artifacts.chat import Chat
from day0.serve.detokenize import begun
from day0.serve.tool_calls import Schemas, ToolCall, parse_call


@dataclass(frozen=True)
class Parsed:
    """What a piece of an answer brings."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class AnswerParser:
    """What comes out in all is the same wherever the pieces are cut.

    White space around markers is dropped. Reasoning is looked for at the beginning of an answer only: later its marker
    is text, as of an answer about this very model. A call goes out once it is whole; what stands between its markers
    and is no call stays text, markers and all, so that nothing of an answer is lost.
    """

    def __init__(self, chat: Chat, *, tools: Schemas | None, in_reasoning: bool) -> None:
        """`tools` None: calls are text. `in_reasoning`: the prompt has written the reasoning's start already."""
        self._reasoning = chat.reasoning
        self._calls = None if tools is None else chat.tool_calls
        self._tools: Schemas = tools or {}
        self._held = ""
        self._within: Literal["beginning", "reasoning", "text", "call"] = (
            "text" if chat.reasoning is None else "reasoning" if in_reasoning else "beginning"
        )
        self._after_marker = in_reasoning
        self._looked = 0  # characters of an open call that hold no whole one

    def push(self, piece: str) -> Parsed:
        """What can go out by now."""
        self._held += piece
        return self._parse(last=False)

    def finish(self) -> Parsed:
        """What is left when the answer has ended."""
        return self._parse(last=True)

    def _parse(self, *, last: bool) -> Parsed:
        text: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        going = True
        while going:
            if self._within == "beginning":
                going = self._begin(last)
            elif self._within == "call":
                going = self._call(calls, text, last)
            elif self._within == "reasoning":
                assert self._reasoning is not None
                going = self._run(reasoning, self._reasoning.end, last)
                if going:
                    self._within = "text"
            else:
                going = self._run(text, None if self._calls is None else self._calls.start, last)
                if going:
                    self._within = "call"
        return Parsed("".join(text), "".join(reasoning), tuple(calls))

    def _begin(self, last: bool) -> bool:
        """Whether it is known by now how the answer begins."""
        assert self._reasoning is not None
        start, held = self._reasoning.start, self._held.lstrip()
        if held.startswith(start):
            self._within = "reasoning"
            self._pass(len(self._held) - len(held) + len(start))
        elif not last and start.startswith(held):
            return False
        else:
            self._within = "text"
        return True

    def _run(self, out: list[str], marker: str | None, last: bool) -> bool:
        """Text up to `marker`, and whether that is there."""
        if self._after_marker:
            self._held = self._held.lstrip()
            if not self._held:
                return False
            self._after_marker = False
        at = -1 if marker is None else self._held.find(marker)
        if marker is not None and at >= 0:
            out.append(self._held[:at].rstrip())
            self._pass(at + len(marker))
            return True
        ready = self._held
        if marker is not None and not last:
            # With the white space before it, which is dropped if the marker comes.
            ready = ready[: len(ready) - begun(ready, marker)].rstrip()
        out.append(ready)
        self._held = self._held[len(ready) :]
        return False

    def _call(self, calls: list[ToolCall], text: list[str], last: bool) -> bool:
        """A call up to the first end marker at which it is a whole one: its arguments may hold the marker, too."""
        assert self._calls is not None
        start, end = self._calls.start, self._calls.end
        at = self._held.find(end, self._looked)
        while at >= 0:
            call = parse_call(self._held[:at], self._calls.forms, self._tools)
            if call is not None:
                calls.append(call)
                self._within, self._looked = "text", 0
                self._pass(at + len(end))
                return True
            self._looked = at + 1
            at = self._held.find(end, self._looked)
        if not last:
            self._looked = max(self._looked, len(self._held) - len(end) + 1)
            return False
        # No call after all. What follows its end marker may have one.
        first = self._held.find(end)
        cut = len(self._held) if first < 0 else first + len(end)
        text.append(start + self._held[:cut])
        self._held = self._held[cut:]
        self._within, self._looked, self._after_marker = "text", 0, False
        return True

    def _pass(self, size: int) -> None:
        """Over a marker that ends after so many characters."""
        self._held = self._held[size:]
        self._after_marker = True
