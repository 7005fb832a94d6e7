"""Which sequences take part in a step: admission, chunks of prompts, and who makes room when memory is short."""

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from day0.artifacts.layout import PAGE_TOKENS
from day0.engine.counts import Counts
from day0.engine.memory.pool import PoolEmpty
from day0.engine.memory.store import Place, Store
from day0.engine.request import Request
from day0.errors import Day0Error

# Steps by which one priority level comes before the next: a request of a lower one waits no longer than these.
AGING_STEPS = 512


@dataclass(eq=False)
class Sequence:
    """A request that has memory: `tokens` are prompt and output, of which `place.length` are in it."""

    request: Request
    tokens: list[int]
    place: Place
    junctions: set[int]  # where other prompts part from this one: each deserves a checkpoint
    decodes: bool = False  # its prompt is in memory, its last tokens were drawn since
    chunks: int = 0  # steps that its prompt took so far

    @property
    def ahead(self) -> int:
        """Tokens not in memory yet: of a sequence that decodes the last one drawn, and those to replay after drafts
        were rejected."""
        return len(self.tokens) - self.place.length


@dataclass(frozen=True)
class Step:
    """What to run: sequences that decode, and chunks of others with the position each goes up to."""

    decoding: list[Sequence] = field(default_factory=list)
    prefilling: list[tuple[Sequence, int]] = field(default_factory=list)


@dataclass(order=True)
class _Waiting:
    rank: int
    number: int
    request: Request = field(compare=False)
    # Computes what this one begins with, up to there: it is worth waiting for.
    leader: Sequence | None = field(default=None, compare=False)
    shared: int = field(default=0, compare=False)


class Scheduler:
    """Requests in the order of arrival, moved by AGING_STEPS for each priority level, which no waiting changes.

    Progress: the first in that order is never preempted, and whatever it needs is taken from the prefix index and then
    from the last ones; a request that would not fit alone is refused by `add`. So the first one ends, and the next one
    becomes first. `step_tokens` are the most tokens of a step; prompts always get a page of them. With `chunk_sizes` a
    prompt goes in steps of these sizes instead, the last one again and again: odd ones for tests.

    A request whose first page or more is just being computed for one before it in the order waits until that is done,
    and finds it in memory then: copies of a prompt, or prompts with the same instructions, compute it once. Those
    behind it do not wait for it. It waits for none but a running one before it, so the first still waits for nobody.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_running: int,
        step_tokens: int,
        chunk_sizes: tuple[int, ...] = (),
        counts: Counts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_running < 1 or step_tokens < PAGE_TOKENS:
            raise Day0Error(
                f"{max_running} running sequences and {step_tokens} tokens a step",
                hint=f"give at least one sequence and {PAGE_TOKENS} tokens",
            )
        slots = store.slots.count - store.slots.reserved
        if max_running > slots:
            raise Day0Error(
                f"{max_running} running sequences need as many state slots, the memory has {slots}",
                hint="run fewer, or give the store more slots",
            )
        self._store = store
        self._counts = counts or Counts()
        self._clock = clock
        self._max_running = max_running
        self._step_tokens = step_tokens
        self._chunk_sizes = chunk_sizes
        self._waiting: list[_Waiting] = []
        self._ranks: dict[Request, tuple[int, int]] = {}
        self.running: list[Sequence] = []
        self._steps = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request. Raises Day0Error when it could never run here."""
        most = len(request.prompt) + request.sampling.max_tokens
        layout = self._store.layout
        if not request.prompt:
            raise Day0Error("the prompt has no tokens", hint="give at least one")
        wrong = [t for t in request.prompt if not 0 <= t < layout.vocab_size]
        if wrong:
            raise Day0Error(
                f"token id {wrong[0]} is outside the vocabulary of {layout.vocab_size}",
                hint="check the tokenizer against the model",
            )
        biased = [t for t in request.sampling.logit_bias if not 0 <= t < layout.vocab_size]
        if biased:
            raise Day0Error(
                f"logit_bias has token id {biased[0]}, outside the vocabulary of {layout.vocab_size}",
                hint="give ids of this model",
            )
        room = (self._store.pages.count - self._store.pages.reserved) * PAGE_TOKENS
        if layout.max_positions is not None:
            room = min(room, layout.max_positions)
        if most > room:
            raise Day0Error(
                f"{len(request.prompt)} prompt tokens and {request.sampling.max_tokens} new ones are more than {room}",
                hint="shorten the prompt, ask for fewer tokens, or serve with more memory",
            )
        rank = self._steps + request.priority * AGING_STEPS
        self._ranks[request] = (rank, request.number)
        heapq.heappush(self._waiting, _Waiting(rank, request.number, request))

    def next(self) -> Step:
        """The next step's work; pages for all of it are there. Cancelled requests are ended before."""
        self._steps += 1
        self._end_cancelled()
        self._admit()
        step = Step()
        for sequence in sorted(self.running, key=self._rank):
            # Those not in `running` any more made room for one before them.
            if sequence.decodes and sequence in self.running and self._room_for(sequence, len(sequence.tokens)):
                step.decoding.append(sequence)
        budget = max(self._step_tokens - sum(s.ahead for s in step.decoding), PAGE_TOKENS)
        for sequence in sorted((s for s in self.running if not s.decodes), key=self._rank):
            end = self._chunk_end(sequence, budget)
            if end > sequence.place.length:
                step.prefilling.append((sequence, end))
                sequence.chunks += 1
                budget -= end - sequence.place.length
        return step

    def end(self, sequence: Sequence) -> None:
        """A sequence's memory is given back."""
        self._store.close(sequence.place)
        self.running.remove(sequence)
        del self._ranks[sequence.request]

    def preempt(self, sequence: Sequence) -> None:
        """Back into the queue. What is in memory goes to the prefix index, to be found again if it is not needed."""
        request, place = sequence.request, sequence.place
        self._store.keep(place, sequence.tokens[: place.length])
        self._store.close(place)
        self.running.remove(sequence)
        request.preemptions += 1
        self._counts.preemptions += 1
        rank, number = self._ranks[request]
        heapq.heappush(self._waiting, _Waiting(rank, number, request))

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Pages for a draft, where they cost nobody anything but the prefix index."""
        try:
            self._store.grow(sequence.place, tokens)
        except PoolEmpty:
            return False
        return True

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        return self._ranks[sequence.request]

    def _end_cancelled(self) -> None:
        for sequence in [s for s in self.running if s.request.cancelled]:
            sequence.request.finished = "cancelled"
            self.end(sequence)
        cancelled = [w for w in self._waiting if w.request.cancelled]
        if cancelled:
            for waiting in cancelled:
                waiting.request.finished = "cancelled"
                del self._ranks[waiting.request]
            self._waiting = [w for w in self._waiting if not w.request.cancelled]
            heapq.heapify(self._waiting)

    def _admit(self) -> None:
        set_aside: list[_Waiting] = []
        while self._waiting:
            waiting = self._waiting[0]
            if self._should_wait(waiting):
                set_aside.append(heapq.heappop(self._waiting))
            elif not self._admit_first(waiting.request):
                break
        for waiting in set_aside:
            heapq.heappush(self._waiting, waiting)

    def _admit_first(self, request: Request) -> bool:
        """The first of those that wait gets memory, from those after it if need be; False where there is none."""
        rank = self._ranks[request]
        if len(self.running) >= self._max_running and not self._preempt_after(rank):
            return False
        sequence = self._open(request)
        while sequence is None:
            if not self._preempt_after(rank):
                return False
            sequence = self._open(request)
        # Whoever was preempted for it comes after it.
        heapq.heappop(self._waiting)
        self.running.append(sequence)
        return True

    def _should_wait(self, waiting: _Waiting) -> bool:
        """Whether a running sequence before it computes a page or more of its beginning."""
        request, rank = waiting.request, (waiting.rank, waiting.number)
        if self._store.index is None:
            return False
        if waiting.leader is None or not self._leads(waiting.leader, rank):
            waiting.leader = None
            tokens = request.tokens
            for leader in self.running:
                if leader.request.namespace == request.namespace and self._leads(leader, rank):
                    shared = _shared(tokens, leader.tokens)
                    if shared - leader.place.length >= PAGE_TOKENS and (
                        waiting.leader is None or shared > waiting.shared
                    ):
                        waiting.leader, waiting.shared = leader, shared
            if waiting.leader is not None:
                waiting.leader.junctions.add(waiting.shared)
        return waiting.leader is not None and waiting.leader.place.length < waiting.shared

    def _leads(self, sequence: Sequence, rank: tuple[int, int]) -> bool:
        return not sequence.decodes and sequence in self.running and self._rank(sequence) < rank

    def _open(self, request: Request) -> Sequence | None:
        """Memory for all of its tokens and one page for each sequence that runs, so that they do not fall over each
        other at once; or None."""
        tokens = request.tokens
        try:
            place, junction = self._store.open(tokens, request.namespace)
        except PoolEmpty:
            return None
        try:
            self._store.grow(place, len(tokens))
            if self.running and not self._can_spare(len(self.running)):
                raise PoolEmpty("running sequences would be short of pages", hint="wait")
        except PoolEmpty:
            self._store.close(place)
            return None
        if request.admitted_step is None:
            request.admitted_step, request.admitted_at = self._steps, self._clock()
            request.reused = place.reused
            self._counts.prompt_tokens += len(request.prompt)
            self._counts.reused_tokens += place.reused
        return Sequence(request, tokens, place, {junction})

    def _can_spare(self, pages: int) -> bool:
        while self._store.pages.free < pages:
            if self._store.index is None or not self._store.index.free_page():
                return False
        return True

    def _room_for(self, sequence: Sequence, tokens: int) -> bool:
        """Pages for it, if need be from those behind it; False when it had to make room itself."""
        while not self.grow(sequence, tokens):
            if not self._preempt_after(self._rank(sequence)):
                self.preempt(sequence)
                return False
        return True

    def _preempt_after(self, rank: tuple[int, int]) -> bool:
        """Take the memory of the last sequence, if it comes after `rank`."""
        last = max(self.running, key=self._rank, default=None)
        if last is None or self._rank(last) <= rank:
            return False
        self.preempt(last)
        return True

    def _chunk_end(self, sequence: Sequence, budget: int) -> int:
        """Up to the junction or the end, or as many whole pages as fit; its start where none does."""
        start, end = sequence.place.length, len(sequence.tokens)
        end = min((j for j in sequence.junctions if start < j), default=end)
        if self._chunk_sizes:
            return min(end, start + self._chunk_sizes[min(sequence.chunks, len(self._chunk_sizes) - 1)])
        return end if end - start <= budget else max((start + budget) // PAGE_TOKENS * PAGE_TOKENS, start)


def _shared(tokens: list[int], leader: list[int]) -> int:
    """Tokens at the beginning of both that `tokens` need not compute when a checkpoint of the leader's is there: all
    that can be where one begins with the other (the last one is computed for its logits), else whole pages."""
    most = min(len(tokens) - 1, len(leader))
    if tokens[:most] == leader[:most]:
        return most
    end = 0
    while tokens[end : end + PAGE_TOKENS] == leader[end : end + PAGE_TOKENS]:
        end += PAGE_TOKENS
    return end
