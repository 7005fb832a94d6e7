"""/v1/chat/completions: conversations, written as a prompt by the model's own template."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio.to_thread

from day0.errors import Day0Error
from day0.serve.errors import ApiError, bad_request
from day0.serve.generation import Generation, Piece, Token
from day0.serve.logprobs import finite, token_bytes, token_text
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
    Message,
    TokenizeRequest,
    TokenLogprob,
    dump,
)
from day0.serve.service import Service

_MOST_LOGPROBS = 20


async def prompt_of(service: Service, asked: ChatRequest | TokenizeRequest) -> tuple[int, ...]:
    """The conversation's token ids, up to where the assistant begins. Raises ApiError: another model, no template, or
    one that refuses these messages."""
    service.check_model(asked.model)
    messages, variables = asked.messages, asked.chat_template_kwargs
    if not messages:
        raise ApiError(400, "there are no messages", param="messages", code="invalid_value")
    tokenizer = service.tokenizer("messages")
    turns = [_turn(message) for message in messages]
    try:
        # In a thread of its own: a template may take seconds.
        text = await anyio.to_thread.run_sync(lambda: tokenizer.render_chat(turns, variables=variables))
    except Day0Error as error:
        raise bad_request(error, fields={"messages": None}) from error
    return await service.encode(text, param="messages")


def begin(service: Service, asked: ChatRequest, prompt: tuple[int, ...], owner: bytes) -> Generation:
    """The generation, queued. Raises ApiError."""
    logprobs = _logprobs_asked(asked)
    given = [n for n in (asked.max_completion_tokens, asked.max_tokens) if n is not None]
    if len(set(given)) > 1:
        raise ApiError(400, "max_tokens and max_completion_tokens differ: give one of them", param="max_tokens")
    # Without a number the answer may be as long as there is room for.
    most = given[0] if given else max(1, service.room - len(prompt))
    return service.begin(asked, [prompt], max_tokens=most, logprobs=logprobs, owner=owner)


async def whole(service: Service, asked: ChatRequest, generation: Generation) -> dict[str, Any]:
    """The answer, when all of it is there."""
    parts: list[list[Piece]] = [[] for _ in generation.choices]
    async for piece in generation.pieces():
        parts[piece.index].append(piece)
    choices = []
    for index, pieces in enumerate(parts):
        tokens = [token for p in pieces for token in p.tokens]
        message = ChatMessage(role="assistant", content="".join(p.text for p in pieces), refusal=None)
        choice = ChatChoice(
            index=index,
            message=message,
            logprobs=_logprobs(service, asked, tokens),
            finish_reason=pieces[-1].finish or "stop",
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
    service: Service, asked: ChatRequest, generation: Generation, pieces: AsyncIterator[Piece]
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
    async for piece in pieces:
        part = ChatChunkChoice(
            index=piece.index,
            delta=Delta(content=piece.text) if piece.text else Delta(),
            logprobs=_logprobs(service, asked, piece.tokens),
            finish_reason=piece.finish,
        )
        if asked.return_token_ids:
            part.token_ids = [token.drawn.token for token in piece.tokens]
        yield chunk(part)
    if with_usage:
        yield dump(head.model_copy(update={"usage": generation.usage}))


def _turn(message: Message) -> dict[str, Any]:
    """A message as templates know it: one text, and `developer` under its older name."""
    turn = message.model_dump(exclude_unset=True, exclude={"refusal"})
    turn["role"] = "system" if message.role == "developer" else message.role
    if isinstance(message.content, list):
        turn["content"] = "".join(part.text for part in message.content)
    elif message.content is None:
        turn["content"] = ""
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
