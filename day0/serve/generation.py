"""Continuations of one request: tokens from the engine become pieces of text, until the client has all or is gone."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from day0.engine.request import Drawn, Request
from day0.serve.detokenize import Decoder, Detokenizer, StopStrings
from day0.serve.errors import ApiError, bad_request
from day0.serve.limits import Ticket
from day0.serve.metrics import Metrics
from day0.serve.schemas import CachedTokens, Usage
from day0.serve.worker import Progress, Worker, WorkerDown


@dataclass(frozen=True)
class Token:
    """A generated token, and where its text begins in that of its choice, in characters."""

    drawn: Drawn
    offset: int


@dataclass(frozen=True)
class Piece:
    """Text of one choice as it comes, the tokens up to there, and in its last piece why it ended."""

    index: int
    text: str
    tokens: tuple[Token, ...]
    finish: str | None


@dataclass(eq=False)
class Choice:
    """One continuation. `decoder` is None for a model without a tokenizer, which has no text."""

    index: int
    request: Request
    decoder: Decoder | None
    stops: Sequence[str] = ()
    skip_special_tokens: bool = True
    tokens: int = 0  # that the client is told of
    finish: str | None = None
    last_token_at: float | None = None
    _characters: int = 0
    _pending: list[Token] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cut = StopStrings(self.stops)
        self._text = (
            None if self.decoder is None else Detokenizer(self.decoder, skip_special_tokens=self.skip_special_tokens)
        )

    def take(self, progress: Progress) -> Piece | None:
        """The piece that a step brings; None where nothing can go out yet. Not for one that has ended."""
        out = ""
        for drawn in progress.drawn:
            self.tokens += 1
            self._pending.append(Token(drawn, self._characters))
            if self._text is not None and drawn.token not in self.request.sampling.stop_ids:
                out += self._push(self._text.push(drawn.token))
            if self._cut.found is not None:
                break
        if self._cut.found is None and progress.ended in ("stop", "length"):
            if self._text is not None:
                out += self._push(self._text.finish())
            if self._cut.found is None:
                out += self._cut.finish()
                self.finish = progress.ended
        if self._cut.found is not None:
            self.finish = "stop"
        if not out and self.finish is None and (self._text is not None or not self._pending):
            return None
        piece = Piece(self.index, out, tuple(self._pending), self.finish)
        self._pending.clear()
        return piece

    def _push(self, text: str) -> str:
        self._characters += len(text)
        return self._cut.push(text)


class Generation:
    """All continuations of a request. Iterate over it once; `close` it in any case, which frees what it holds."""

    def __init__(
        self, worker: Worker, metrics: Metrics, choices: list[Choice], ticket: Ticket, *, n: int, timeout_s: float
    ) -> None:
        """`choices`: n of each prompt, one prompt after the other. Made in the event loop that will iterate over it."""
        self.choices = choices
        self.prompts = [choice.request.prompt for choice in choices[::n]]
        self._n = n
        self._worker = worker
        self._metrics = metrics
        self._ticket = ticket
        self._news: asyncio.Queue[tuple[Choice, Progress]] = asyncio.Queue()
        self._begun = time.monotonic()
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._timeout_s = timeout_s
        self._closed = False

    def start(self) -> None:
        """Queue all of them. Raises ApiError when the engine is down."""
        try:
            for choice in self.choices:
                self._worker.submit(choice.request, partial(self._heard, choice))
        except WorkerDown as down:
            raise ApiError(503, down.message, code="not_ready", retry_after_s=5) from down

    @property
    def usage(self) -> Usage:
        """Up to now. A prompt counts once, however many choices it has."""
        prompt = sum(len(prompt) for prompt in self.prompts)
        completion = sum(choice.tokens for choice in self.choices)
        cached = sum(choice.request.reused for choice in self.choices[:: self._n])
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=CachedTokens(cached_tokens=cached),
        )

    def _heard(self, choice: Choice, progress: Progress) -> None:
        self._news.put_nowait((choice, progress))

    async def pieces(self) -> AsyncIterator[Piece]:
        """Text as it comes, of any choice, until each has ended.

        Raises ApiError: the engine refused a request (400), failed on one or as a whole (500), or the answer took
        too long (504).
        """
        left = sum(choice.finish is None for choice in self.choices)
        while left:
            choice, progress = await self._next()
            if choice.finish is not None:
                continue  # tokens after a stop string: the engine had not heard of it yet
            if progress.refused is not None:
                raise bad_request(progress.refused)
            self._measure(choice, progress)
            piece = choice.take(progress)
            if choice.finish is None and progress.ended is not None:
                self._metrics.finished.labels(progress.ended).inc()
                raise ApiError(500, progress.error or "the request was cancelled", code="generation_failed")
            if choice.finish is not None:
                left -= 1
                choice.request.cancel()
                self._metrics.finished.labels(choice.finish).inc()
            if piece is not None:
                yield piece

    async def _next(self) -> tuple[Choice, Progress]:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._news.get()
        except TimeoutError:
            raise ApiError(504, f"the answer took longer than {self._timeout_s:g} s", code="timeout") from None

    def _measure(self, choice: Choice, progress: Progress) -> None:
        if progress.admitted is not None:
            self._metrics.queue_seconds.observe(max(0.0, progress.admitted - self._begun))
        if not progress.drawn:
            return
        if choice.last_token_at is None:
            self._metrics.first_token_seconds.observe(progress.at - self._begun)
        else:
            between = (progress.at - choice.last_token_at) / len(progress.drawn)
            for _ in progress.drawn:
                self._metrics.token_seconds.observe(between)
        choice.last_token_at = progress.at

    def close(self) -> None:
        """Cancel what still runs, and give the room back. More calls change nothing."""
        if self._closed:
            return
        self._closed = True
        for choice in self.choices:
            if choice.finish is None:
                choice.request.cancel()
                self._metrics.finished.labels("cancelled").inc()
        usage = self.usage
        self._metrics.generated_tokens.inc(usage.completion_tokens)
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.cached_tokens.inc(usage.prompt_tokens_details.cached_tokens)
        self._metrics.prefix_hits.inc(sum(choice.request.reused > 0 for choice in self.choices))
        self._metrics.request_seconds.observe(time.monotonic() - self._begun)
        self._ticket.release()
