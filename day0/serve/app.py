"""The HTTP API of one service."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from day0.serve import chat, completions
from day0.serve.answering import ClientGone, EventStream, unless_gone, usage_fields
from day0.serve.errors import Answer, ApiError, error_answer
from day0.serve.gate import Gate
from day0.serve.generation import Generation, Piece
from day0.serve.keys import ApiKeys
from day0.serve.schemas import (
    NOT_SUPPORTED,
    ChatRequest,
    CompletionRequest,
    Model,
    Models,
    TokenizeAnswer,
    TokenizeRequest,
    dump,
)
from day0.serve.service import Service

_log = logging.getLogger(__name__)

# How long the worker's last step may take once all requests were ended, in seconds.
_STOP_S = 30.0


def make_app(service: Service, keys: ApiKeys) -> FastAPI:
    """The ASGI application; its lifespan starts the service's worker and ends it."""
    app = FastAPI(title="day0", docs_url=None, redoc_url=None, lifespan=lambda _: _lifespan(service))
    app.add_middleware(Gate, service=service, keys=keys)
    _add_error_handlers(app)
    _add_operations(app, service)
    _add_models(app, service)
    _add_generations(app, service)
    return app


@asynccontextmanager
async def _lifespan(service: Service) -> AsyncIterator[None]:
    service.worker.start(asyncio.get_running_loop())
    fault = await service.health.check()
    if fault:
        _log.error("not ready", extra={"fields": {"fault": fault}})
    try:
        yield
    finally:
        service.worker.stop("the server is shutting down")
        if not await asyncio.to_thread(service.worker.join, _STOP_S):
            _log.error("the engine's last step did not end")


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether a known answer comes out right."""
        fault = await service.health.check()
        return Answer({"status": "red" if fault else "green", "fault": fault or None}, 503 if fault else 200)

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests are taken."""
        why_not = service.not_ready
        return Answer({"ready": not why_not, "why_not": why_not or None}, 503 if why_not else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus. Each scrape has health checked, for the next one to show: an alert needs no other prober, and
        an engine that hangs does not keep its metrics from being read."""
        service.health.check_behind()
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_models(app: FastAPI, service: Service) -> None:
    model = Model(
        id=service.served.name, object="model", created=service.created, owned_by="day0", max_model_len=service.room
    )

    @app.get("/v1/models")
    async def models() -> Response:
        return Answer(dump(Models(object="list", data=[model])))

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        service.check_model(name)
        return Answer(dump(model))

    @app.post("/tokenize")
    async def tokenize(asked: TokenizeRequest) -> Response:
        service.check_model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "give one of prompt and messages", param="prompt", code="invalid_value")
        if asked.messages is not None:
            ids = (await chat.prompt_of(service, asked)).ids
        else:
            ids = await service.encode(asked.prompt or "", param="prompt", add_special_tokens=asked.add_special_tokens)
        return Answer(dump(TokenizeAnswer(count=len(ids), max_model_len=service.room, tokens=list(ids))))


def _add_generations(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions")
    async def complete(asked: CompletionRequest, request: Request) -> Response:
        _log_user(request, asked.user)
        prompts = await unless_gone(request.receive, completions.prompts_of(service, asked))
        generation = completions.begin(service, asked, prompts, request.state.owner)
        if not asked.stream:
            return await _whole(request, generation, completions.whole(service, asked, generation))
        pieces = await _begun(request, generation)
        return EventStream(
            generation, completions.events(service, asked, generation, pieces), send_s=service.limits.send_s
        )

    @app.post("/v1/chat/completions")
    async def converse(asked: ChatRequest, request: Request) -> Response:
        _log_user(request, asked.user)
        prompt = await unless_gone(request.receive, chat.prompt_of(service, asked))
        generation = chat.begin(service, asked, prompt.ids, request.state.owner)
        if not asked.stream:
            return await _whole(request, generation, chat.whole(service, asked, prompt, generation))
        pieces = await _begun(request, generation)
        events = chat.events(service, asked, prompt, generation, pieces)
        return EventStream(generation, events, send_s=service.limits.send_s)


def _log_user(request: Request, user: str | None) -> None:
    if user is not None:
        request.state.log["user"] = user


async def _whole(request: Request, generation: Generation, answer: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    try:
        return Answer(await unless_gone(request.receive, answer))
    finally:
        generation.close()
        request.state.log.update(usage_fields(generation))


async def _begun(request: Request, generation: Generation) -> AsyncIterator[Piece]:
    """The generation's pieces once the first is there: what goes wrong before that still has a status of its own."""
    pieces = generation.pieces()
    try:
        first = await unless_gone(request.receive, anext(pieces))
    except BaseException:
        generation.close()
        request.state.log.update(usage_fields(generation))
        raise
    return _chained(first, pieces)


async def _chained(first: Piece, others: AsyncIterator[Piece]) -> AsyncIterator[Piece]:
    yield first
    async for piece in others:
        yield piece


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        known = error if isinstance(error, ApiError) else ApiError(error.status_code, str(error.detail))
        return error_answer(known)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return error_answer(_malformed(error))

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # for the log: nobody reads it


def _malformed(error: RequestValidationError) -> ApiError:
    """The first field that is wrong, and in how many ways it could be right."""
    faults = [fault for fault in error.errors() if len(fault["loc"]) > 1] or error.errors()
    where = [str(part) for part in faults[0]["loc"][1:]]
    if faults[0]["type"] == "string_unicode" and not where:
        return ApiError(400, "a name in the body is no text: half a surrogate pair stands in it")
    if faults[0]["type"] == "json_invalid" or not where:
        return ApiError(400, "the body is no JSON object: send one, with Content-Type: application/json")
    param = where[0]
    if faults[0]["type"] == "extra_forbidden":
        # Of nested objects the fields by their whole path, so that it says which one.
        param = ".".join(where)
        if param in NOT_SUPPORTED:
            return ApiError(
                400, f"{param} is not supported by this server: leave it out", param=param, code="unsupported_parameter"
            )
        return ApiError(400, f"{param[:200]} is no parameter", param=param[:200], code="unknown_parameter")
    ways = dict.fromkeys(fault["msg"] for fault in faults if fault["loc"][1] == faults[0]["loc"][1])
    return ApiError(400, f"{param}: {'; or: '.join(ways)}"[:500], param=param, code="invalid_value")
