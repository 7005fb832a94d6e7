"""Steps of many requests over one memory: prompts in chunks, decoding together, drafts verified in one forward."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from day0.engine.drafting import Drafter
from day0.engine.memory.pool import PoolEmpty
from day0.engine.memory.prefix_index import grid
from day0.engine.memory.store import Store
from day0.engine.request import Drawn, Request
from day0.engine.sampling import draw
from day0.engine.scheduler import Scheduler, Sequence
from day0.kernels.interface.batch import Batch, Phase
from day0.kernels.interface.memory import Memory

Forward = Callable[[Batch, Memory], Tensor]
# Known tokens that a sequence replays before its next draft, at most: beyond, a step without drafts moves its state.
REPLAYED = 16


@dataclass
class Counts:
    """Since the engine was made."""

    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    verifies: int = 0
    preemptions: int = 0


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
        chunk_sizes: tuple[int, ...] = (),
        observer: Observer | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._forward = forward
        self.store = store
        self.scheduler = Scheduler(store, max_running=max_running, step_tokens=step_tokens, chunk_sizes=chunk_sizes)
        self._observer = observer
        self._drafter = drafter
        self._draft_tokens = draft_tokens
        self._device = device
        self._stateful = any(c.role == "per_sequence" for c in store.layout.components)
        self.counts = Counts()

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
        drafts = [self._drafts(s) for s in work.decoding]
        plain = [s for s, d in zip(work.decoding, drafts, strict=True) if not d and s.ahead == 1]
        others = [(s, d) for s, d in zip(work.decoding, drafts, strict=True) if d or s.ahead > 1]
        if plain:
            self._decode(plain)
        if others:
            self._verify(others)

    def _prefill(self, work: list[tuple[Sequence, int]]) -> None:
        rows = self._logits([(s, s.tokens[s.place.length : end]) for s, end in work], "prefill")
        for (sequence, end), logits in zip(work, rows, strict=True):
            place, request = sequence.place, sequence.request
            self._moved(sequence, end, "prefill")
            if not self._sound(sequence, logits[-1:]):
                continue
            if end in (len(request.prompt), sequence.junction) or grid(end):
                self.store.keep(place, sequence.tokens[:end])
            if end == len(sequence.tokens):
                sequence.decodes = True
                self._append(sequence, [draw(logits[-1], request, request.output)])

    def _decode(self, sequences: list[Sequence]) -> None:
        rows = self._logits([(s, s.tokens[-1:]) for s in sequences], "decode")
        for sequence, logits in zip(sequences, rows, strict=True):
            self._moved(sequence, sequence.place.length + 1, "decode")
            if self._sound(sequence, logits):
                self._append(sequence, [draw(logits[-1], sequence.request, sequence.request.output)])

    def _drafts(self, sequence: Sequence) -> list[int]:
        """What to try after the sequence's last token; nothing where there is no memory for it."""
        left = sequence.request.sampling.max_tokens - len(sequence.request.drawn) - 1
        if self._drafter is None or sequence.ahead > REPLAYED or left <= 0:
            return []
        proposed = self._drafter.propose(sequence.request, sequence.tokens, min(self._draft_tokens, left))
        vocabulary = self.store.layout.vocab_size
        if any(not 0 <= t < vocabulary for t in proposed) or len(proposed) > min(self._draft_tokens, left):
            raise ValueError(f"the drafter proposed {proposed}")
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
        rows = self._logits([(s, s.tokens[s.place.length :] + d) for s, d in work], "verify")
        for (sequence, drafts), logits, slot in zip(work, rows, saved, strict=True):
            place, request = sequence.place, sequence.request
            known = sequence.ahead
            if not self._sound(sequence, logits, slot):
                continue
            drawn: list[Drawn] = []
            accepted = 0
            for offset in range(len(drafts) + 1):
                output = [*request.output, *(d.token for d in drawn)]
                drawn.append(draw(logits[known - 1 + offset], request, output))
                if offset == len(drafts) or drawn[-1].token != drafts[offset]:
                    break
                accepted += 1
            if drafts:
                self.counts.verifies += 1
                self.counts.drafted += len(drafts)
                self.counts.accepted += accepted
                assert self._drafter is not None
                self._drafter.accepted(request, accepted, len(drafts))
            if slot is not None and accepted < len(drafts):
                # The accepted tokens stay ahead of the state that comes back.
                self.store.restore_state(place, slot)
            else:
                self._moved(sequence, place.length + known + accepted, "verify")
                self.store.drop_state(slot)
            self._append(sequence, drawn)

    def _logits(self, work: list[tuple[Sequence, list[int]]], phase: Phase) -> tuple[Tensor, ...]:
        batch = Batch.pack(
            [tokens for _, tokens in work],
            context_lens=[s.place.length for s, _ in work],
            slots=[s.place.slot for s, _ in work],
            pages=[s.place.pages for s, _ in work],
            phase=phase,
            device=self._device,
        )
        logits = self._forward(batch, self.store.memory)
        return torch.split(logits, [len(tokens) for _, tokens in work])

    def _moved(self, sequence: Sequence, end: int, phase: Phase) -> None:
        """The tokens up to `end` are in memory."""
        start, sequence.place.length = sequence.place.length, end
        self.counts.computed_tokens += end - start
        if self._observer is not None:
            self._observer.ran(sequence, start, end, phase)

    def _sound(self, sequence: Sequence, logits: Tensor, saved: int | None = None) -> bool:
        """End a sequence whose logits are not numbers, without a trace in the prefix index."""
        if not logits.isnan().any():
            return True
        self.store.drop_state(saved)
        sequence.request.finished = "error"
        sequence.request.error = f"the model's logits after {sequence.place.length} tokens are not numbers"
        self.scheduler.end(sequence)
        return False

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
        # Not where a stop token was among accepted drafts: the state has gone past it.
        if sequence.place.length <= len(sequence.tokens):
            self.store.keep(sequence.place, sequence.tokens[: sequence.place.length])
        self.counts.prompt_tokens += len(request.prompt)
        self.counts.reused_tokens += request.reused
        self.counts.preemptions += request.preemptions
        self.scheduler.end(sequence)
