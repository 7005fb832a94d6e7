"""What is served: a model behind its engine, and how requests for it are made from what clients send."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio.to_thread

from day0.artifacts.chat import Chat
from day0.artifacts.layout import PAGE_TOKENS
from day0.engine.engine import Engine
from day0.engine.request import Request
from day0.repo.tokenizer import Tokenizer
from day0.serve.errors import ApiError
from day0.serve.generation import Choice, Generation
from day0.serve.health import Health, KnownAnswer
from day0.serve.limits import Admission, Limits
from day0.serve.metrics import Metrics
from day0.serve.sampling import sampling_of, seed_of_choice, stops_of
from day0.serve.schemas import Generating
from day0.serve.worker import Worker

# When to ask again where nobody knows how long it takes, in seconds.
_RETRY_S = 5


@dataclass(frozen=True)
class Served:
    """A model as it is served: `name` is what clients call it, `tokenizer` None where it takes and gives token ids
    only, `stop_ids` end an answer unless a request says otherwise, `chat` says how its answers are written."""

    name: str
    engine: Engine
    tokenizer: Tokenizer | None = None
    stop_ids: tuple[int, ...] = ()
    known: KnownAnswer | None = None
    max_running: int = 8
    chat: Chat = Chat()


@dataclass
class Service:
    """One model, its worker, and who is being served."""

    served: Served
    limits: Limits = Limits()
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False

    def __post_init__(self) -> None:
        engine = self.served.engine
        self.worker = Worker(engine)
        self.metrics = Metrics(engine)
        self.admission = Admission(
            running=self.served.max_running, waiting=self.limits.waiting, streams=self.limits.streams
        )
        self.health = Health(self.worker, self.served.known, timeout_s=self.limits.known_answer_s)
        self.metrics.healthy.set_function(lambda: 0 if self.worker.down or self.health.not_ready else 1)

    @property
    def room(self) -> int:
        """Most tokens of one prompt and its answer together."""
        store = self.served.engine.store
        held = (store.pages.count - store.pages.reserved) * PAGE_TOKENS
        most = store.layout.max_positions
        return held if most is None else min(held, most)

    @property
    def not_ready(self) -> str:
        """Why no request is taken; empty while they are."""
        if self.draining:
            return "the server is shutting down"
        return self.worker.down or self.health.not_ready

    def check_model(self, name: str) -> None:
        if name != self.served.name:
            raise ApiError(
                404,
                f"there is no model {name!r} here, only {self.served.name!r}",
                param="model",
                code="model_not_found",
            )

    async def encode(self, text: str, *, param: str, add_special_tokens: bool = False) -> tuple[int, ...]:
        """Token ids of a text. Raises ApiError: no tokenizer, or no text."""
        tokenizer = self.tokenizer(param)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ApiError(400, f"{param} holds half a surrogate pair, which is no text", param=param) from None
        # In a thread of its own: a long text takes a while, and the tokenizer lets others work meanwhile.
        ids = await anyio.to_thread.run_sync(lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens))
        return tuple(ids)

    def tokenizer(self, param: str) -> Tokenizer:
        if self.served.tokenizer is None:
            raise ApiError(400, "the model has no tokenizer: give the prompt as token ids", param=param)
        return self.served.tokenizer

    def begin(
        self,
        asked: Generating,
        prompts: Sequence[tuple[int, ...]],
        *,
        max_tokens: int,
        logprobs: int | None,
        owner: bytes,
    ) -> Generation:
        """Continuations of these prompts, queued: `asked.choices` of each. The caller closes them.

        Prompts are shared in memory between requests of one `owner` only. Raises ApiError: out of bounds (400), no
        room now (429), not ready (503).
        """
        n = asked.choices
        if not 1 <= n or n * len(prompts) > self.limits.choices:
            what = f"n is {n} for {len(prompts)} prompts; the server gives 1 to {self.limits.choices} answers a request"
            raise ApiError(400, what, param="n", code="invalid_value")
        for prompt in prompts:
            self._check_prompt(prompt, max_tokens)
        engine = self.served.engine
        sampling = sampling_of(
            asked,
            max_tokens=max_tokens,
            logprobs=logprobs,
            stop_ids=self.served.stop_ids,
            vocab_size=engine.store.layout.vocab_size,
        )
        stops = stops_of(asked, self.limits)
        if self.served.tokenizer is None and stops:
            raise ApiError(400, "the model has no tokenizer, so nothing can be a stop string", param="stop")
        if self.served.tokenizer is None and not asked.return_token_ids:
            raise ApiError(400, "the model has no tokenizer: set return_token_ids to get an answer", param="prompt")
        if self.not_ready:
            raise ApiError(503, self.not_ready, code="not_ready", retry_after_s=_RETRY_S)
        choices = [
            Choice(
                at * n + choice,
                Request(
                    prompt,
                    dataclasses.replace(sampling, seed=seed_of_choice(sampling.seed, choice)),
                    namespace=owner,
                ),
                self.served.tokenizer,
                stops,
                asked.skip_special_tokens,
            )
            for at, prompt in enumerate(prompts)
            for choice in range(n)
        ]
        ticket = self.admission.take(len(choices), stream=bool(asked.stream))
        generation = Generation(self.worker, self.metrics, choices, ticket, n=n, timeout_s=self.limits.request_s)
        try:
            generation.start()
        except ApiError:
            generation.close()
            raise
        return generation

    def drain(self) -> None:
        """Take no more requests; those under way go on."""
        self.draining = True

    def _check_prompt(self, prompt: tuple[int, ...], max_tokens: int) -> None:
        vocabulary = self.served.engine.store.layout.vocab_size
        if not prompt:
            raise ApiError(400, "the prompt has no tokens", param="prompt", code="invalid_value")
        wrong = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if wrong is not None:
            what = f"the prompt has a token id outside the vocabulary of {vocabulary}"
            raise ApiError(400, what, param="prompt", code="invalid_value")
        most = self.limits.prompt_tokens
        if most is not None and len(prompt) > most:
            what = f"the prompt has {len(prompt)} tokens, the server takes {most}"
            raise ApiError(400, what, param="prompt", code="context_length_exceeded")
        if len(prompt) + max_tokens > self.room:
            what = (
                f"{len(prompt)} prompt tokens and {max_tokens} new ones are more than the {self.room} there is room for"
            )
            raise ApiError(400, what, param="max_tokens", code="context_length_exceeded")
