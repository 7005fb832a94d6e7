"""The thread that owns the engine: requests come in from anywhere, tokens go out to the event loop."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from day0.engine.engine import Engine
from day0.engine.request import Drawn, Request
from day0.errors import Day0Error

_log = logging.getLogger(__name__)

# How long an idle worker sleeps before it looks whether it should stop, in seconds.
_IDLE_WAIT_S = 0.5

ENGINE_FAILED = "the engine failed, and every request that ran in it"


@dataclass(frozen=True)
class Progress:
    """What one step brought a request: its new tokens and, once, how it ended.

    `refused`: the engine would never have run it; the client's fault, in two lines. `at` is time.monotonic() when the
    step was over; `admitted` the same of when the request got its memory, in its first Progress with tokens.
    """

    drawn: tuple[Drawn, ...] = ()
    ended: str | None = None  # a FinishReason
    error: str = ""
    refused: Day0Error | None = None
    at: float = 0.0
    admitted: float | None = None


Listener = Callable[[Progress], None]


@dataclass(eq=False)
class _Job:
    request: Request
    listener: Listener
    told: int = 0  # tokens that the listener knows of
    admitted: float | None = None
    admission_told: bool = False


class WorkerDown(Day0Error):
    """No request is taken: the engine failed, or the worker was stopped."""


class Worker:
    """Steps an engine in a thread of its own. No other thread touches the engine; all methods here are safe from any.

    Listeners are called in the event loop that `start` was given, all of one step in one go. A step that raises ends
    the worker: every request it knows gets one error, later ones WorkerDown.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._incoming: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._jobs: dict[Request, _Job] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # between taking a request and going down, so that none comes in unseen
        self._down = ""
        self._stopping: str | None = None

    @property
    def down(self) -> str:
        """Why no request is taken; empty while they are."""
        if self._down:
            return self._down
        return "" if self._thread is not None else "the engine has not started"

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; listeners will be called in `loop`."""
        if self._thread is not None:
            raise ValueError("the worker has started already")
        self._loop = loop
        # A daemon: a step that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="day0-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request. Its listener hears of it until `ended` or `refused`. Raises WorkerDown."""
        with self._lock:
            if self.down:
                raise WorkerDown(self.down, hint="try again later")
            self._incoming.put(_Job(request, listener))

    def cancel(self, request: Request) -> None:
        """End a request at the next step. Nothing happens when it is over already."""
        request.cancel()

    def stop(self, reason: str) -> None:
        """End every request with `reason` as its error, and then the thread. Does not wait: see `join`."""
        with self._lock:
            if self._thread is None:
                self._down = reason
        self._stopping = reason
        self._incoming.put(None)  # wakes it

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False when it did not within `timeout_s`."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._stopping is None:
                self._take()
                if not self.engine.idle:
                    begun = time.monotonic()
                    self.engine.step()
                    self._report(begun)
        except Exception:  # whatever a forward raises: logged whole, every request ends with an error, 503 from then on
            _log.exception("the engine failed")
            self._end(ENGINE_FAILED)
        else:
            self._end(self._stopping or "")

    def _take(self) -> None:
        """Everything that came in; waits for it while there is nothing else to do."""
        wait = self.engine.idle
        while True:
            try:
                job = self._incoming.get(timeout=_IDLE_WAIT_S) if wait else self._incoming.get_nowait()
            except queue.Empty:
                return
            wait = False
            if job is not None:
                self._add(job)

    def _add(self, job: _Job) -> None:
        try:
            self.engine.add(job.request)
        except Day0Error as error:
            self._post([(job, Progress(refused=error, at=time.monotonic()))])
        else:
            self._jobs[job.request] = job

    def _report(self, begun: float) -> None:
        """Tell what the step that began at `begun` brought."""
        now = time.monotonic()
        for sequence in self.engine.scheduler.running:
            job = self._jobs[sequence.request]
            if job.admitted is None:
                job.admitted = begun
        news: list[tuple[_Job, Progress]] = []
        for request, job in self._jobs.items():
            drawn = tuple(request.drawn[job.told :])
            if not drawn and request.finished is None:
                continue
            job.told += len(drawn)
            # One that ran and ended within this step was never seen running.
            admitted = None if job.admission_told else job.admitted or (begun if drawn else None)
            job.admission_told = True
            news.append((job, Progress(drawn, request.finished, request.error or "", at=now, admitted=admitted)))
        for job, progress in news:
            if progress.ended is not None:
                del self._jobs[job.request]
        self._post(news)

    def _end(self, reason: str) -> None:
        with self._lock:
            self._down = reason
            while True:
                try:
                    job = self._incoming.get_nowait()
                except queue.Empty:
                    break
                if job is not None:
                    self._jobs[job.request] = job
        now = time.monotonic()
        self._post([(job, Progress(ended="error", error=reason, at=now)) for job in self._jobs.values()])
        self._jobs.clear()

    def _post(self, news: list[tuple[_Job, Progress]]) -> None:
        """Tell the listeners, in their loop. A loop that is closed has no one left to tell."""
        if not news:
            return
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_tell, news)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            for job, _ in news:
                job.request.cancel()


def _tell(news: list[tuple[_Job, Progress]]) -> None:
    for job, progress in news:
        job.listener(progress)
