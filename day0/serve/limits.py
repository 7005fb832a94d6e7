"""How much a client may ask for, and how many may ask at once."""

import math
import time
from dataclasses import dataclass

from day0.serve.errors import ApiError

_LONGEST_RETRY_S = 60
# Weight of the newest request in the mean time that one takes.
_NEWEST = 0.2


@dataclass(frozen=True)
class Limits:
    """Of one request, unless said otherwise. Sizes in bytes, times in seconds."""

    body_bytes: int = 8 * 2**20
    prompt_tokens: int | None = None  # beside what the memory holds
    choices: int = 16  # continuations: prompts × n
    stop_strings: int = 16
    stop_characters: int = 256  # of one stop string
    waiting: int = 64  # continuations of all requests beyond those that run
    streams: int = 256  # of all clients
    body_s: float = 30.0  # until the whole body is there
    request_s: float = 3600.0  # until the whole answer is there
    send_s: float = 60.0  # until a client has read what it was sent before
    drain_s: float = 30.0  # for answers under way when the server is told to end
    known_answer_s: float = 30.0  # until the known answer is there


class Admission:
    """Counts continuations and streams under way, and refuses more of them than there is room for."""

    def __init__(self, *, running: int, waiting: int, streams: int) -> None:
        self._running = running
        self._most = running + waiting
        self._most_streams = streams
        self._mean_s = 1.0
        self.continuations = 0
        self.streams = 0

    def take(self, continuations: int, *, stream: bool) -> "Ticket":
        """Room for a request. Raises ApiError: 429 with when to try again, 400 where there never is any."""
        if continuations > self._most:
            raise ApiError(
                400,
                f"{continuations} continuations are asked for, the server takes {self._most} at a time",
                param="n",
                code="too_many_choices",
            )
        if self.continuations + continuations > self._most or (stream and self.streams >= self._most_streams):
            raise ApiError(
                429,
                "the server has as many requests as it takes; try again after the time in Retry-After",
                code="queue_full",
                retry_after_s=self._retry_after_s(),
            )
        self.continuations += continuations
        self.streams += stream
        return Ticket(self, continuations, stream)

    def give_back(self, ticket: "Ticket") -> None:
        self.continuations -= ticket.continuations
        self.streams -= ticket.stream
        took = time.monotonic() - ticket.begun
        self._mean_s += _NEWEST * (took - self._mean_s)

    def _retry_after_s(self) -> int:
        """Until a place is free, if requests go on taking as long as they did."""
        return min(max(1, math.ceil(self._mean_s / self._running)), _LONGEST_RETRY_S)


class Ticket:
    """A request's room, until `release`; more calls of that change nothing."""

    def __init__(self, admission: Admission, continuations: int, stream: bool) -> None:
        self._admission: Admission | None = admission
        self.continuations = continuations
        self.stream = stream
        self.begun = time.monotonic()

    def release(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.give_back(self)
