"""A server on a loopback port, in a thread of the test's process."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import httpx
import openai

from day0.serve.keys import ApiKeys
from day0.serve.limits import Limits
from day0.serve.server import Server, listen, serve
from day0.serve.service import Served, Service

WAIT_S = 20


@dataclass
class Running:
    service: Service
    server: Server
    thread: threading.Thread
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none-needed", max_retries=0, timeout=WAIT_S)

    @cached_property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S)

    def in_use(self) -> tuple[int, int, int, int]:
        """Continuations and streams admitted, pages and slots held by sequences (not for reuse)."""
        store = self.service.served.engine.store
        pages, slots = ({}, {}) if store.index is None else store.index.held()
        admission = self.service.admission
        return (
            admission.continuations,
            admission.streams,
            store.pages.used - len(pages),
            store.slots.used - len(slots),
        )

    def wait_until_nothing_is_held(self) -> None:
        wait_for(lambda: self.in_use() == (0, 0, 0, 0) and self.service.served.engine.idle)
        self.service.served.engine.store.check()

    def end(self) -> None:
        self.server.handle_exit(15, None)
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def wait_for(holds) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.005)


@contextlib.contextmanager
def running(served: Served, *, limits: Limits | None = None, keys: ApiKeys | None = None) -> Iterator[Running]:
    started = threading.Event()
    listening = listen("127.0.0.1", 0)
    service = Service(served, limits or Limits(drain_s=5))
    server = Server(service, keys or ApiKeys([]), ready=started.set)
    thread = threading.Thread(target=serve, args=(server, listening), daemon=True)
    thread.start()
    assert started.wait(WAIT_S)
    up = Running(service, server, thread, listening.getsockname()[1])
    try:
        yield up
    finally:
        up.end()
