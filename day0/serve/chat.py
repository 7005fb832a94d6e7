"""/v1/chat/completions: conversations, written as a prompt by the model's own template."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from day0.errors import Day0Error
from day0.serve.errors import ApiError, bad_request
from day0.serve.generation import Generation, Piece, Token
from day0.serve.logprobs import finite, token_bytes, token_text
from day0.serve.parsing import AnswerParser
from day0.serve.schemas import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChosenLogprob,
    Delta,
    FunctionCall,
    Message,
    TokenizeRequest,
    TokenLogprob,
    ToolCallMade,
    dump,
)
from day0.serve.service import Service
from day0.serve.tool_calls import Schemas, ToolCall
from day0.serve.tools import calls_for_template, schemas_of, tools_of

_MOST_LOGPROBS = 20


@dataclass(frozen=True)
class Prompt:
    """A conversation up to where the assistant begins, and how to read what the assistant will write: `tools` by name
    with their schemas, None where calls are no calls; `in_reasoning` where the template has opened it already."""

    ids: tuple[int, ...]
    tools: Schemas | None = None
    in_reasoning: bool = False


async def prompt_of(service: Service, asked: ChatRequest | TokenizeRequest) -> Prompt:
    """The conversation as the model's template writes it. Raises ApiError: another model, no template, or one that
    refuses these messages; tools that it cannot have."""
    service.check_model(asked.model)
    if not asked.messages:
        raise ApiError(400, "there are no messages", param="messages", code="invalid_value")
    tokenizer = service.tokenizer("messages")
    tools = tools_of(service, asked)
    turns = [_turn(message) for message in asked.messages]
    variables = dict(asked.chat_template_kwargs or {})
    if tools is not None:
        variables.setdefault("tool_choice", "auto")
    try:
        # In a thread of its own: a template may take seconds.
        text = await anyio.to_thread.run_sync(lambda: tokenizer.render_chat(turns, tools=tools, variables=variables))
    except Day0Error as error:
        raise bad_request(error, fields={"messages": None}) from error
    ids = await service.encode(text, param="messages")
    reasoning = service.served.chat.reasoning
    return Prompt(ids, schemas_of(tools), reasoning is not None and text.rstrip().endswith(reasoning.start))


def begin(service: Service, asked: ChatRequest, prompt: tuple[int, ...], owner: bytes) -> Generation:
    """The generation, queued. Raises ApiError."""
    logprobs = _logprobs_asked(asked)
    given = [n for n in (asked.max_completion_tokens, asked.max_tokens) if n is not None]
    if len(set(given)) > 1:
        raise ApiError(400, "max_tokens and max_completion_tokens differ: give one of them", param="max_tokens")
    # Without a number the answer may be as long as there is room for.
    most = given[0] if given else max(1, service.room - len(prompt))
    return service.begin(asked, [prompt], max_tokens=most, logprobs=logprobs, owner=owner)


async def whole(service: Service, asked: ChatRequest, prompt: Prompt, generation: Generation) -> dict[str, Any]:
    """The answer, when all of it is there."""
    parts: list[list[Piece]] = [[] for _ in generation.choices]
    async for piece in generation.pieces():
        parts[piece.index].append(piece)
    choices = []
    for index, pieces in enumerate(parts):
        tokens = [token for p in pieces for token in p.tokens]
        reader = _Reader(service, prompt)
        reader.read("".join(p.text for p in pieces), pieces[-1].finish)
        choice = ChatChoice(
            index=index,
            message=reader.message(),
            logprobs=_logprobs(service, asked, tokens),
            finish_reason=reader.finish or "stop",
        )
        if asked.return_token_ids:
            choice.token_ids = [token.drawn.token for token in tokens]
        choices.append(choice)
    answer = ChatAnswer(
        id=_name(),
        object="chat.completion",
        created=int(time.time()),
        model=service.served.name,
        choices=choices,
        usage=generation.usage,
    )
    if asked.return_token_ids:
        answer.prompt_token_ids = list(generation.prompts[0])
    return dump(answer)


async def events(
    service: Service, asked: ChatRequest, prompt: Prompt, generation: Generation, pieces: AsyncIterator[Piece]
) -> AsyncIterator[dict[str, Any]]:
    """The answer, piece by piece: for each choice first its role, then text, then why it ended."""
    with_usage = asked.stream_options is not None and asked.stream_options.include_usage
    head = ChatChunk(
        id=_name(),
        object="chat.completion.chunk",
        created=int(time.time()),
        model=service.served.name,
        choices=[],
    )

    def chunk(choice: ChatChunkChoice) -> dict[str, Any]:
        update: dict[str, Any] = {"choices": [choice]}
        return dump(head.model_copy(update=update | ({"usage": None} if with_usage else {})))

    for choice in generation.choices:
        opening = ChatChunkChoice(
            index=choice.index, delta=Delta(role="assistant", content=""), logprobs=None, finish_reason=None
        )
        first = chunk(opening)
        if asked.return_token_ids:
            first["prompt_token_ids"] = list(generation.prompts[0])
        yield first
    readers = [_Reader(service, prompt) for _ in generation.choices]
    async for piece in pieces:
        reader = readers[piece.index]
        part = ChatChunkChoice(
            index=piece.index,
            delta=reader.read(piece.text, piece.finish),
            logprobs=_logprobs(service, asked, piece.tokens),
            finish_reason=reader.finish,
        )
        if asked.return_token_ids:
            part.token_ids = [token.drawn.token for token in piece.tokens]
        yield chunk(part)
    if with_usage:
        yield dump(head.model_copy(update={"usage": generation.usage}))


class _Reader:
    """One choice of an answer, read as it comes. `finish` is why it ended, once it has."""

    def __init__(self, service: Service, prompt: Prompt) -> None:
        self._parser = AnswerParser(service.served.chat, tools=prompt.tools, in_reasoning=prompt.in_reasoning)
        self._text = ""
        self._reasoning = ""
        self._calls: list[ToolCallMade] = []
        self.finish: str | None = None

    def read(self, text: str, finish: str | None) -> Delta:
        """What a piece brings; `finish` in the last one."""
        parts = [self._parser.push(text)] + ([] if finish is None else [self._parser.finish()])
        self.finish = finish
        delta = Delta()
        if written := "".join(part.text for part in parts):
            delta.content = written
            self._text += written
        if reasoning := "".join(part.reasoning for part in parts):
            delta.reasoning_content = reasoning
            self._reasoning += reasoning
        if calls := [self._made(call) for part in parts for call in part.calls]:
            delta.tool_calls = calls
        if self._calls and finish == "stop":
            self.finish = "tool_calls"
        return delta

    def message(self) -> ChatMessage:
        """All of it, when it has ended."""
        message = ChatMessage(role="assistant", content=self._text, refusal=None)
        if self._reasoning:
            message.reasoning_content = self._reasoning
        if self._calls:
            message.content = self._text or None
            # An index tells the calls of a stream apart; here they stand in a list.
            message.tool_calls = [ToolCallMade(id=c.id, type=c.type, function=c.function) for c in self._calls]
        return message

    def _made(self, call: ToolCall) -> ToolCallMade:
        function = FunctionCall(name=call.name, arguments=call.arguments)
        made = ToolCallMade(index=len(self._calls), id=f"call_{uuid.uuid4().hex}", type="function", function=function)
        self._calls.append(made)
        return made


def _turn(message: Message) -> dict[str, Any]:
    """A message as templates know it: one text, and `developer` under its older name."""
    turn = message.model_dump(exclude_unset=True, exclude={"refusal"})
    turn["role"] = "system" if message.role == "developer" else message.role
    if isinstance(message.content, list):
        turn["content"] = "".join(part.text for part in message.content)
    elif message.content is None:
        turn["content"] = ""
    if message.tool_calls is not None:
        turn["tool_calls"] = calls_for_template(message.tool_calls)
    return turn


def _logprobs_asked(asked: ChatRequest) -> int | None:
    """How many of the best tokens to report; None for no log-probabilities at all."""
    if asked.top_logprobs is None:
        return 0 if asked.logprobs else None
    if not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    if not 0 <= asked.top_logprobs <= _MOST_LOGPROBS:
        what = f"top_logprobs is {asked.top_logprobs}: give 0 to {_MOST_LOGPROBS}"
        raise ApiError(400, what, param="top_logprobs", code="invalid_value")
    return asked.top_logprobs


def _logprobs(service: Service, asked: ChatRequest, tokens: Sequence[Token]) -> ChatLogprobs | None:
    if not asked.logprobs:
        return None

    def one(token: int, logprob: float | None) -> TokenLogprob:
        text = token_text(service.served.tokenizer, token)
        return TokenLogprob(token=text, logprob=finite(logprob), bytes=token_bytes(text))

    return ChatLogprobs(
        content=[
            ChosenLogprob(
                **one(token.drawn.token, token.drawn.logprob).model_dump(),
                top_logprobs=[one(other, value) for other, value in token.drawn.top],
            )
            for token in tokens
        ]
    )


def _name() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"
