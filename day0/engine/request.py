"""What a client asks of the engine, and what it gets."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from day0.errors import Day0Error

FinishReason = Literal["stop", "length", "cancelled", "error"]
_numbers = itertools.count()


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. The defaults are greedy.

    temperature 0 takes the best token. A draw depends on the request's own logits, `seed` and the position alone, so
    that it is the same in any company, with and without speculation. Penalties as in the OpenAI API: subtracted from
    the logits of tokens generated before (frequency: times their count); `repetition_penalty` divides positive logits
    of the prompt's and generated tokens and multiplies negative ones (arXiv 1909.05858). Raises Day0Error.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None  # how many of the best tokens to report beside the one drawn

    def __post_init__(self) -> None:
        ranges = {
            "max_tokens": (self.max_tokens, 1, float("inf")),
            "temperature": (self.temperature, 0.0, 100.0),
            "top_k": (self.top_k, 0, 2**31 - 1),
            "top_p": (self.top_p, 1e-6, 1.0),
            "min_p": (self.min_p, 0.0, 1.0),
            "seed": (self.seed, 0, 2**63 - 1),
            "presence_penalty": (self.presence_penalty, -2.0, 2.0),
            "frequency_penalty": (self.frequency_penalty, -2.0, 2.0),
            "repetition_penalty": (self.repetition_penalty, 0.01, 100.0),
            "logprobs": (self.logprobs or 0, 0, 20),
        }
        for name, (value, least, most) in ranges.items():
            if not least <= value <= most:
                raise Day0Error(f"{name} is {value}", hint=f"give a number from {least:g} to {most:g}")
        for token, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                raise Day0Error(f"logit_bias of token {token} is {bias}", hint="give a number from -100 to 100")

    @property
    def plain_greedy(self) -> bool:
        """Whether the best of the model's own logits is the answer."""
        penalised = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        return self.temperature == 0.0 and not penalised and not self.logit_bias


@dataclass(frozen=True)
class Drawn:
    """One generated token, its log-probability under the model's logits, and the best tokens with theirs."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """A prompt on its way through the engine. A smaller `priority` is served first; prefixes are shared within a
    `namespace` only."""

    prompt: tuple[int, ...]
    sampling: Sampling = Sampling()
    priority: int = 0
    namespace: bytes = b""
    number: int = field(default_factory=lambda: next(_numbers))
    drawn: list[Drawn] = field(default_factory=list)
    finished: FinishReason | None = None
    error: str | None = None
    reused: int = 0  # prompt tokens found in memory when it was first admitted
    preemptions: int = 0
    admitted_step: int | None = None  # of the engine, from 1: when it got memory first
    admitted_at: float | None = None  # the same by the engine's clock, in seconds
    _cancelled: bool = False

    @property
    def tokens(self) -> list[int]:
        """Prompt and generated tokens."""
        return [*self.prompt, *(d.token for d in self.drawn)]

    @property
    def output(self) -> list[int]:
        return [d.token for d in self.drawn]

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """End it at the next step; it keeps what it has generated. Safe from another thread."""
        self._cancelled = True
