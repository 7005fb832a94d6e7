"""Who proposes tokens for one forward to verify."""

from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

from day0.engine.request import Request


class Drafter(Protocol):
    """Proposals cost time when they are wrong and change nothing else. Multi-token-prediction heads fit here, too."""

    def propose(self, request: Request, tokens: list[int], most: int) -> list[int]:
        """At most `most` tokens that may follow `tokens`, which are the request's prompt and output so far."""
        ...

    def accepted(self, request: Request, accepted: int, proposed: int) -> None:
        """How many of the last proposal were right."""
        ...


class PromptLookup:
    """Proposes what followed the last tokens when they stood in the sequence before (arXiv 2304.04487).

    The longest of `longest` .. `shortest` last tokens that occurred earlier decides, its latest occurrence first. Each
    sequence has an index of its n-grams that grows with it, so that a proposal costs no search through the text.
    """

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._ngrams: WeakKeyDictionary[Request, _NGrams] = WeakKeyDictionary()

    def propose(self, request: Request, tokens: list[int], most: int) -> list[int]:
        ngrams = self._ngrams.setdefault(request, _NGrams())
        # Those that end before the last token: the last ones are what is looked for.
        for end in range(ngrams.indexed, len(tokens)):
            for n in self._lengths:
                if n <= end:
                    ngrams.ends[tuple(tokens[end - n : end])] = end
        ngrams.indexed = len(tokens)
        for n in self._lengths:
            found = ngrams.ends.get(tuple(tokens[-n:]))
            if n < len(tokens) and found is not None:
                return tokens[found : found + most]
        return []

    def accepted(self, request: Request, accepted: int, proposed: int) -> None:
        """Rejected or not, the text says what to propose next."""


@dataclass
class _NGrams:
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 1
