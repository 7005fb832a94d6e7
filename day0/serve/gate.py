"""What every HTTP request goes through: an id, the key, the size of its body; and what is logged and counted of it."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from day0.serve.errors import ApiError, error_answer
from day0.serve.keys import ApiKeys
from day0.serve.logs import request_id
from day0.serve.service import Service

_log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
_KNOWN_PATHS = OPEN_PATHS | {"/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize"}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """ASGI middleware. The body is read here, whole and bounded, before anything else looks at the request; who asks
    stands in `scope["state"]["owner"]`, and `scope["state"]["log"]` takes what else the log should say."""

    def __init__(self, app: ASGIApp, service: Service, keys: ApiKeys) -> None:
        self._app = app
        self._service = service
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(name)
        fields: dict[str, Any] = {}
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["log"] = fields
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        try:
            try:
                state["owner"] = self._owner(scope["path"], headers)
                body = await self._body(headers, receive)
            except ApiError as error:
                await error_answer(error)(scope, receive, answer)
            else:
                if body is not None:
                    await self._app(scope, _replayed(body, receive), answer)
        except Exception:  # the outermost place: logged whole, and the client is told, by a 500 or a broken answer
            _log.exception("the server failed on a request")
            if status:  # the answer has begun: all that can be done is not to end it well
                raise
            failed = ApiError(500, f"the server failed on this request; its log has more on {name}")
            await error_answer(failed)(scope, receive, answer)
        finally:
            path = scope["path"] if scope["path"] in _KNOWN_PATHS else "other"
            # 499: gone before there was an answer, as nginx writes it.
            self._service.metrics.responses.labels(path, str(status or 499)).inc()
            fields |= {
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status or 499,
                "took_ms": round((time.monotonic() - begun) * 1000, 1),
            }
            quiet = path in OPEN_PATHS and status == 200
            _log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})
            request_id.reset(token)

    def _owner(self, path: str, headers: Headers) -> bytes:
        if path in OPEN_PATHS:
            return b""
        owner = self._keys.owner(headers.get("authorization"))
        if owner is None:
            raise ApiError(
                401, "the API key is missing or wrong: send Authorization: Bearer KEY", code="invalid_api_key"
            )
        return owner

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None when the client is gone before its end. Raises ApiError: too large, or too slow."""
        limits = self._service.limits
        too_large = ApiError(413, f"the body has more than {limits.body_bytes} bytes", code="body_too_large")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > limits.body_bytes:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limits.body_bytes:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {limits.body_s:g} s", code="timeout") from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """First the body, then whatever comes: of a request whose body is read, that the client is gone."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
