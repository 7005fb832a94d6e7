"""Whether the server gives right answers: a generation whose tokens are known, through the engine that serves."""

import asyncio
import logging
import time
from dataclasses import dataclass

from day0.engine.request import Request, Sampling
from day0.serve.worker import Progress, Worker, WorkerDown

_log = logging.getLogger(__name__)

# How long a check's outcome stands, in seconds: nobody shall be able to keep the engine busy by asking.
_FRESH_S = 5.0
_NAMESPACE = b"known answer"
# Before all others, so that a long queue is not taken for a fault.
_PRIORITY = -1


@dataclass(frozen=True)
class KnownAnswer:
    """A prompt and its greedy continuation, found by other means than the engine that is checked."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


class Health:
    """Runs a known answer when asked, at most every few seconds. Without one, health is a worker that runs."""

    def __init__(self, worker: Worker, known: KnownAnswer | None, *, timeout_s: float) -> None:
        self._worker = worker
        self._known = known
        self._timeout_s = timeout_s
        self._one_at_a_time = asyncio.Lock()
        self._checked_at: float | None = None
        self._fault = "the known answer was not checked yet"
        self._behind: asyncio.Task[str] | None = None

    @property
    def not_ready(self) -> str:
        """Why the last check does not hold; empty when it does."""
        return self._fault

    async def check(self) -> str:
        """What is wrong; empty when nothing is."""
        async with self._one_at_a_time:
            if self._worker.down:
                self._fault = self._worker.down
            elif self._checked_at is None or time.monotonic() - self._checked_at > _FRESH_S:
                fault = "" if self._known is None else await self._run(self._known)
                if fault:
                    _log.error("the known answer failed", extra={"fields": {"fault": fault}})
                self._fault = fault
                self._checked_at = time.monotonic()
            return self._fault

    def check_behind(self) -> None:
        """Check without waiting for the outcome, which `not_ready` says once it is there."""
        if self._behind is None or self._behind.done():
            self._behind = asyncio.create_task(self.check())

    async def _run(self, known: KnownAnswer) -> str:
        request = Request(
            known.prompt, Sampling(max_tokens=len(known.tokens)), priority=_PRIORITY, namespace=_NAMESPACE
        )
        over: asyncio.Future[Progress] = asyncio.get_running_loop().create_future()

        def listen(progress: Progress) -> None:
            if (progress.ended is not None or progress.refused is not None) and not over.done():
                over.set_result(progress)

        try:
            self._worker.submit(request, listen)
            async with asyncio.timeout(self._timeout_s):
                end = await over
        except WorkerDown as down:
            return down.message
        except TimeoutError:
            return f"the known answer did not come within {self._timeout_s:g} s"
        finally:
            request.cancel()
        if end.refused is not None:
            return f"the engine refuses the known answer's prompt: {end.refused.message}"
        if end.ended == "error":
            return end.error
        if tuple(request.output) != known.tokens:
            return f"the engine answers {request.output} where {list(known.tokens)} is right"
        return ""
