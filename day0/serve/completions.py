"""/v1/completions: prompts as text or token ids, continued as they are."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from day0.serve.errors import ApiError
from day0.serve.generation import Generation, Piece, Token
from day0.serve.logprobs import finite, token_text
from day0.serve.schemas import CompletionAnswer, CompletionChoice, CompletionLogprobs, CompletionRequest, dump
from day0.serve.service import Service

_DEFAULT_TOKENS = 16  # as in OpenAI's API
_MOST_LOGPROBS = 20


Prompts = list[tuple[int, ...]]


async def prompts_of(service: Service, asked: CompletionRequest) -> Prompts:
    """Token ids of the prompts. Raises ApiError: another model, too many, or text for a model without a tokenizer."""
    service.check_model(asked.model)
    prompts = _separate(asked.prompt)
    if not 1 <= len(prompts) <= service.limits.choices:  # before the work, not after it
        what = f"{len(prompts)} prompts; the server takes 1 to {service.limits.choices} a request"
        raise ApiError(400, what, param="prompt", code="invalid_value")
    return [await service.encode(part, param="prompt") if isinstance(part, str) else tuple(part) for part in prompts]


def _separate(given: str | list[int] | list[str] | list[list[int]]) -> list[str] | list[list[int]]:
    if isinstance(given, str):
        return [given]
    one = [token for token in given if isinstance(token, int)]
    if one:
        return [one]
    return [text for text in given if isinstance(text, str)] or [ids for ids in given if isinstance(ids, list)]


def begin(service: Service, asked: CompletionRequest, prompts: Prompts, owner: bytes) -> Generation:
    """The generation, queued. Raises ApiError."""
    if asked.logprobs is not None and not 0 <= asked.logprobs <= _MOST_LOGPROBS:
        what = f"logprobs is {asked.logprobs}: give 0 to {_MOST_LOGPROBS}"
        raise ApiError(400, what, param="logprobs", code="invalid_value")
    if asked.echo and asked.logprobs is not None:
        # Of the prompt's tokens they would be wanted, too, and the engine keeps only the last one's.
        raise ApiError(400, "logprobs with echo is not supported", param="logprobs", code="unsupported_parameter")
    if asked.echo:
        service.tokenizer("echo")
    most = _DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens
    return service.begin(asked, prompts, max_tokens=most, logprobs=asked.logprobs, owner=owner)


async def whole(service: Service, asked: CompletionRequest, generation: Generation) -> dict[str, Any]:
    """The answer, when all of it is there."""
    parts: list[list[Piece]] = [[] for _ in generation.choices]
    async for piece in generation.pieces():
        parts[piece.index].append(piece)
    choices = [
        _choice(
            service,
            asked,
            generation,
            index,
            text="".join(p.text for p in pieces),
            tokens=[token for p in pieces for token in p.tokens],
            finish=pieces[-1].finish,
            first=True,
        )
        for index, pieces in enumerate(parts)
    ]
    answer = _answer(service, choices)
    answer.usage = generation.usage
    return dump(answer)


async def events(
    service: Service, asked: CompletionRequest, generation: Generation, pieces: AsyncIterator[Piece]
) -> AsyncIterator[dict[str, Any]]:
    """The answer, piece by piece."""
    with_usage = asked.stream_options is not None and asked.stream_options.include_usage
    head = _answer(service, [])
    begun: set[int] = set()
    async for piece in pieces:
        first = piece.index not in begun
        begun.add(piece.index)
        choice = _choice(
            service,
            asked,
            generation,
            piece.index,
            text=piece.text,
            tokens=piece.tokens,
            finish=piece.finish,
            first=first,
        )
        chunk = head.model_copy(update={"choices": [choice]})
        if with_usage:
            chunk.usage = None
        yield dump(chunk)
    if with_usage:
        yield dump(head.model_copy(update={"usage": generation.usage}))


def _answer(service: Service, choices: list[CompletionChoice]) -> CompletionAnswer:
    return CompletionAnswer(
        id=f"cmpl-{uuid.uuid4().hex}",
        object="text_completion",
        created=int(time.time()),
        model=service.served.name,
        choices=choices,
    )


def _choice(
    service: Service,
    asked: CompletionRequest,
    generation: Generation,
    index: int,
    *,
    text: str,
    tokens: Sequence[Token],
    finish: str | None,
    first: bool,
) -> CompletionChoice:
    prompt = generation.choices[index].request.prompt
    if first and asked.echo:
        text = service.tokenizer("echo").decode(prompt, skip_special_tokens=asked.skip_special_tokens) + text
    choice = CompletionChoice(
        index=index,
        text=text,
        logprobs=None if asked.logprobs is None else _logprobs(service, tokens),
        finish_reason=finish,
    )
    if asked.return_token_ids:
        choice.token_ids = [token.drawn.token for token in tokens]
        if first:
            choice.prompt_token_ids = list(prompt)
    return choice


def _logprobs(service: Service, tokens: Sequence[Token]) -> CompletionLogprobs:
    out = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token in tokens:
        drawn = token.drawn
        text = token_text(service.served.tokenizer, drawn.token)
        logprob = finite(drawn.logprob)
        best: dict[str, float] = {}
        for other, value in drawn.top:
            # Tokens of half a character look alike; the best of them stands for all.
            best.setdefault(token_text(service.served.tokenizer, other), finite(value))
        if drawn.top:
            best.setdefault(text, logprob)
        out.tokens.append(text)
        out.token_logprobs.append(logprob)
        out.top_logprobs.append(best)
        out.text_offset.append(token.offset)
    return out
