"""How answers go out: whole or as a stream of events, and not at all to a client that is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from day0.serve.errors import ApiError, ascii_json
from day0.serve.generation import Generation

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ClientGone(Exception):
    """The client closed its connection: nobody is left to answer."""


async def unless_gone(receive: Receive, work: Awaitable[_T]) -> _T:
    """What `work` gives, which is cancelled when the client goes. The request's body must have been read.

    Raises ClientGone, and what `work` raises.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events of a generation, closed however the stream ends, begun or not.

    What goes wrong after the first event is one last event with the error, and no `[DONE]`: a text that is cut short
    must not look like a whole one. A client that reads nothing for `send_s` seconds is given up.
    """

    def __init__(self, generation: Generation, events: AsyncIterator[dict[str, Any]], *, send_s: float) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_lines(events), media_type="text/event-stream", headers=headers)
        self._generation = generation
        self._send_s = send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._send_s):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            # Without an end of the response: the server closes the connection.
            _log.warning("a client does not read its stream")
        finally:
            self._generation.close()
            scope["state"]["log"].update(usage_fields(self._generation))


async def _lines(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield b"data: " + ascii_json(event) + b"\n\n"
    except ApiError as error:
        yield b"data: " + ascii_json(error.body) + b"\n\n"
    except Exception:  # the status is sent already: this is the last place that can tell the client
        _log.exception("a stream failed")
        failed = ApiError(500, "the server failed on this request", code="internal_error")
        yield b"data: " + ascii_json(failed.body) + b"\n\n"
    else:
        yield b"data: [DONE]\n\n"


def usage_fields(generation: Generation) -> dict[str, Any]:
    """What the log says of a generation."""
    usage = generation.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "finish_reasons": [choice.finish or "cancelled" for choice in generation.choices],
    }
