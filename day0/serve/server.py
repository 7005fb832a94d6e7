"""The process around the API: a port of its own, and an end in which answers under way are finished."""

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from day0.errors import Day0Error
from day0.serve.app import make_app
from day0.serve.keys import ApiKeys
from day0.serve.service import Service

# For the last events of streams that were ended to reach their clients, in seconds.
_LAST_WORDS_S = 5
_BACKLOG = 1024


class Server(uvicorn.Server):
    """Listens on one socket. SIGTERM or SIGINT: no new requests, those under way have `drain_s`, then they are ended
    with an error; a second signal ends at once."""

    def __init__(self, service: Service, keys: ApiKeys, *, ready: Callable[[], None] = lambda: None) -> None:
        self._service = service
        self._ready = ready
        super().__init__(
            uvicorn.Config(
                make_app(service, keys),
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(service.limits.drain_s) + _LAST_WORDS_S,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not as uvicorn, which raises the signal once more after the end: a server that was told to end has ended well.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.drain()
        late = asyncio.get_running_loop().call_later(
            self._service.limits.drain_s, self._service.worker.stop, "the server is shutting down"
        )
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises Day0Error when it cannot."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Day0Error(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="choose another --host or --port"
        ) from error


def serve(server: Server, listening: socket.socket) -> None:
    """Serve until a signal ends it."""
    server.run(sockets=[listening])
