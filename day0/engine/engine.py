"""Steps of many requests over one memory: prompts in chunks, decoding together, drafts verified in one forward."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from day0.engine.counts import Counts
from day0.engine.drafting import Drafter
from day0.engine.memory.pool import PoolEmpty
from day0.engine.memory.prefix_index import grid
from day0.engine.memory.store import Store
from day0.engine.request import Drawn, Request
from day0.engine.sampling import draw
from day0.engine.scheduler import Scheduler, Sequence
from day0.engine.speculation import Speculation
from day0.kernels.interface.batch import Batch, Phase
from day0.kernels.interface.memory import Memory

_log = logging.getLogger(__name__)

Forward = Callable[[Batch, Memory], Tensor]
# Known tokens that a sequence replays before its next draft, at most: beyond, a step without drafts moves its state.
REPLAYED = 16


class _Failed(Exception):
    """One request's own work went wrong; says how, to whoever asked."""


class Observer(Protocol):
    """Is told what runs, to check it."""

    def ran(self, sequence: Sequence, start: int, end: int, phase: Phase) -> None:
        """Tokens start .. end - 1 of a sequence went through one forward, and stay in memory."""
        ...

    def ends(self, sequence: Sequence) -> None:
        """The sequence is over; its memory is still its own."""
        ...


class Engine:
    """Runs requests to their end, `step` by step. `drafter` proposes tokens that one forward verifies: what comes out
    is what comes out without it, token for token, since each token is drawn from its own logits, seed and position.

    A state cannot be cut back. So a verified sequence keeps a copy of its state in a scratch slot, and where a draft is
    rejected the copy comes back: the accepted tokens are then known but not in memory, and go through the next step
    before its drafts.

    `speculation` judges from measured times when drafts are worth making; without it they always are. `clock` gives
    seconds.

    What goes wrong in one request's own work (its drafts, its logits, its draw) ends that request with the finish
    reason "error". A forward is everybody's work: what it raises goes through `step`, after which nothing is known.
    """

    def __init__(
        self,
        forward: Forward,
        store: Store,
        *,
        max_running: int,
        step_tokens: int,
        drafter: Drafter | None = None,
        draft_tokens: int = 4,
        speculation: Speculation | None = None,
        chunk_sizes: tuple[int, ...] = (),
        observer: Observer | None = None,
        device: torch.device | str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forward = forward
        self.store = store
        self.counts = Counts()
        self.scheduler = Scheduler(
            store,
            max_running=max_running,
            step_tokens=step_tokens,
            chunk_sizes=chunk_sizes,
            counts=self.counts,
            clock=clock,
        )
        self._observer = observer
        self._drafter = drafter
        self._draft_tokens = draft_tokens
        self._speculation = speculation
        self._clock = clock
        self._device = device
        self._stateful = any(c.role == "per_sequence" for c in store.layout.components)

    def add(self, request: Request) -> None:
        """Queue a request. Raises Day0Error when it could never run."""
        self.scheduler.add(request)

    @property
    def idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting

    def run(self, requests: Iterable[Request]) -> None:
        """All of these to their end."""
        for request in requests:
            self.add(request)
        while not self.idle:
            self.step()

    @torch.no_grad()
    def step(self) -> None:
        """One step: every decoding sequence gets its next tokens, prompts go on as the step's budget allows."""
        work = self.scheduler.next()
        self.counts.steps += 1
        if work.prefilling:
            self._prefill(work.prefilling)
        if work.decoding:
            self._continue(work.decoding)

    def _continue(self, decoding: list[Sequence]) -> None:
        """Their next tokens, and how long these took: choosing tokens has waited for the device before and after."""
        begun, before, running = self._clock(), self.counts.generated_tokens, len(decoding)
        judge = self._speculation
        drafting = self._drafter is not None and (judge is None or judge.drafts(running))
        plain: list[Sequence] = []
        others: list[tuple[Sequence, list[int]]] = []
        for sequence in decoding:
            try:
                drafts = self._drafts(sequence) if drafting else []
            except _Failed as failed:
                self._fail(sequence, failed)
                continue
            if drafts or sequence.ahead > 1:
                others.append((sequence, drafts))
            else:
                plain.append(sequence)
        if plain:
            self._decode(plain)
        if others:
            self._verify(others)
        if judge is None or self._drafter is None or len(plain) + len(others) < running:
            return
        if not others:
            judge.decoded(running, self._clock() - begun)
        elif drafting:
            judge.verified(running, self.counts.generated_tokens - before, self._clock() - begun)
            self.counts.pauses = judge.pauses
        # What is left are replays after the last drafts of a window: steps of neither kind.

    def _prefill(self, work: list[tuple[Sequence, int]]) -> None:
        rows = self._logits([(s, s.tokens[s.place.length : end], 1) for s, end in work], "prefill")
        for (sequence, end), logits in zip(work, rows, strict=True):
            place, request = sequence.place, sequence.request
            self._moved(sequence, end, "prefill")
            try:
                # Also where nothing is drawn: what is not sound must not be found by later prompts.
                _check_sound(logits[-1], place.length)
                drawn = [self._draw(sequence, logits[-1], [])] if end == len(sequence.tokens) else []
            except _Failed as failed:
                self._fail(sequence, failed)
                continue
            if end == len(request.prompt) or end in sequence.junctions or grid(end):
                self.store.keep(place, sequence.tokens[:end])
            if drawn:
                sequence.decodes = True
                self._append(sequence, drawn)

    def _decode(self, sequences: list[Sequence]) -> None:
        rows = self._logits([(s, s.tokens[-1:], 1) for s in sequences], "decode")
        for sequence, logits in zip(sequences, rows, strict=True):
            self._moved(sequence, sequence.place.length + 1, "decode")
            try:
                drawn = self._draw(sequence, logits[-1], [])
            except _Failed as failed:
                self._fail(sequence, failed)
            else:
                self._append(sequence, [drawn])

    def _drafts(self, sequence: Sequence) -> list[int]:
        """What to try after the sequence's last token; nothing where there is no memory for it."""
        left = sequence.request.sampling.max_tokens - len(sequence.request.drawn) - 1
        if sequence.ahead > REPLAYED or left <= 0:
            return []
        assert self._drafter is not None
        most, vocabulary = min(self._draft_tokens, left), self.store.layout.vocab_size
        try:
            proposed = list(self._drafter.propose(sequence.request, sequence.tokens, most))
        except Exception as error:
            raise _Failed(f"no draft could be made: {_described(error)}") from error
        if len(proposed) > most or not all(isinstance(t, int) and 0 <= t < vocabulary for t in proposed):
            raise _Failed(f"the drafter proposed {proposed[: most + 1]}, at most {most} tokens below {vocabulary} go")
        fits = self.scheduler.grow(sequence, len(sequence.tokens) + len(proposed))
        return proposed if fits else []

    def _verify(self, work: list[tuple[Sequence, list[int]]]) -> None:
        """Known tokens and drafts in one forward; the draft's tokens count up to the first that was not drawn."""
        saved: list[int | None] = []
        for index, (sequence, drafts) in enumerate(work):
            slot = None
            if drafts and self._stateful:
                try:
                    slot = self.store.save_state(sequence.place)
                except PoolEmpty:
                    work[index] = (sequence, [])
            saved.append(slot)
        rows = self._logits([(s, s.tokens[s.place.length :] + d, len(d) + 1) for s, d in work], "verify")
        for (sequence, drafts), logits, slot in zip(work, rows, saved, strict=True):
            place, known = sequence.place, sequence.ahead
            drawn, accepted, failed = self._verified(sequence, drafts, logits)
            if failed is None and drafts:
                failed = self._told(sequence.request, accepted, len(drafts))
            if slot is not None and (accepted < len(drafts) or failed is not None):
                # The accepted tokens stay ahead of the state that comes back.
                self.store.restore_state(place, slot)
            else:
                self.store.drop_state(slot)
                if failed is None:
                    self._moved(sequence, place.length + known + accepted, "verify")
            # What was drawn before the failure is what a run without drafts would have given.
            self._append(sequence, drawn)
            if failed is not None and sequence.request.finished is None:
                self._fail(sequence, failed)

    def _verified(
        self, sequence: Sequence, drafts: list[int], logits: Tensor
    ) -> tuple[list[Drawn], int, _Failed | None]:
        """What `logits`, those of the last known token and of each draft, give; how many drafts were drawn so; and what
        went wrong after these. Rows that a run without drafts would not have seen have no part in it."""
        drawn: list[Drawn] = []
        for row, draft in zip(logits, [*drafts, None], strict=True):
            try:
                drawn.append(self._draw(sequence, row, [d.token for d in drawn]))
            except _Failed as failed:
                return drawn, len(drawn), failed
            if drawn[-1].token != draft:
                return drawn, len(drawn) - 1, None
            if draft in sequence.request.sampling.stop_ids:
                return drawn, len(drawn), None
        raise AssertionError("no token is equal to None")

    def _told(self, request: Request, accepted: int, proposed: int) -> _Failed | None:
        """Count a verification, and tell the drafter."""
        self.counts.verified(accepted, proposed)
        assert self._drafter is not None
        try:
            self._drafter.accepted(request, accepted, proposed)
        except Exception as error:
            failed = _Failed(f"the drafter failed: {_described(error)}")
            failed.__cause__ = error
            return failed
        return None

    def _logits(self, work: list[tuple[Sequence, list[int], int]], phase: Phase) -> tuple[Tensor, ...]:
        """One forward of each sequence's tokens; the logits [rows, vocab] of the last `rows` of them.

        A forward may also give those of all.
        """
        batch = Batch.pack(
            [tokens for _, tokens, _ in work],
            context_lens=[s.place.length for s, _, _ in work],
            slots=[s.place.slot for s, _, _ in work],
            pages=[s.place.pages for s, _, _ in work],
            phase=phase,
            device=self._device,
        )
        wanted = [rows for _, _, rows in work]
        if sum(wanted) < len(batch.token_ids):
            ends = itertools.accumulate(len(tokens) for _, tokens, _ in work)
            asked = [row for end, rows in zip(ends, wanted, strict=True) for row in range(end - rows, end)]
            batch = replace(batch, asked=torch.tensor(asked, device=self._device))
        logits = self._forward(batch, self.store.memory)
        if logits.shape[0] == len(batch.token_ids):
            logits = batch.asked_rows(logits)
        return torch.split(logits, wanted)

    def _moved(self, sequence: Sequence, end: int, phase: Phase) -> None:
        """The tokens up to `end` are in memory."""
        start, sequence.place.length = sequence.place.length, end
        self.counts.computed_tokens += end - start
        if self._observer is not None:
            self._observer.ran(sequence, start, end, phase)

    def _draw(self, sequence: Sequence, row: Tensor, also: list[int]) -> Drawn:
        """The token after the sequence's own and `also`, from the logits [V] there. Raises _Failed."""
        request = sequence.request
        _check_sound(row, len(request.prompt) + len(request.drawn) + len(also))
        try:
            return draw(row, request, [*request.output, *also])
        except Exception as error:
            # Whatever this request's options do to it. A device that is lost shows in the next forward again.
            raise _Failed(f"no token could be drawn: {_described(error)}") from error

    def _fail(self, sequence: Sequence, failed: _Failed) -> None:
        """End a sequence whose own work went wrong, with nothing added to the prefix index."""
        request = sequence.request
        request.finished, request.error = "error", str(failed)
        _log.warning("request %d failed: %s", request.number, failed, exc_info=failed.__cause__)
        self.scheduler.end(sequence)

    def _append(self, sequence: Sequence, drawn: list[Drawn]) -> None:
        """Add tokens up to the one that ends the request, and end it then."""
        request, sampling = sequence.request, sequence.request.sampling
        for token in drawn:
            request.drawn.append(token)
            sequence.tokens.append(token.token)
            self.counts.generated_tokens += 1
            if token.token in sampling.stop_ids:
                request.finished = "stop"
            elif len(request.drawn) == sampling.max_tokens:
                request.finished = "length"
            if request.finished is not None:
                break
        if request.finished is None:
            return
        if self._observer is not None:
            self._observer.ends(sequence)
        self.store.keep(sequence.place, sequence.tokens[: sequence.place.length])
        self.scheduler.end(sequence)


def _check_sound(row: Tensor, tokens: int) -> None:
    """Raise _Failed unless some of the logits [V] after so many tokens is a number, and none is NaN or infinity."""
    largest = float(row.max())  # NaN where any is NaN
    if not math.isfinite(largest):
        what = "are not numbers" if math.isnan(largest) else "hold infinity" if largest > 0 else "allow no token"
        raise _Failed(f"the model's logits after {tokens} tokens {what}")


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
