"""Text of tokens that come one by one: whole characters, and nothing that may be the beginning of a stop string."""

from collections.abc import Sequence
from typing import Protocol

# The decoder's sign for bytes that are no character, or not yet one.
_INCOMPLETE = "\ufffd"
# A character has four bytes at most, so text is held back for a few tokens. What makes no sense for longer is no text.
_MOST_HELD = 64


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class Detokenizer:
    """Decodes token by token. The pieces together are the text of all tokens.

    Tokens are decoded after those of the piece before, since decoders treat the first token of a text in their own way
    (they strip its space). A piece that ends in half a character waits for the tokens that complete it.
    """

    def __init__(self, decoder: Decoder, *, skip_special_tokens: bool = True) -> None:
        self._decoder = decoder
        self._skip = skip_special_tokens
        self._before: list[int] = []  # tokens of the last piece
        self._before_text = ""
        self._held: list[int] = []  # tokens since

    def push(self, token: int) -> str:
        """The text that this token completes; empty where a character is still open."""
        self._held.append(token)
        text = self._text()
        # Tokens without text, as special ones are, go with the next piece.
        if (not text or text.endswith(_INCOMPLETE)) and len(self._held) < _MOST_HELD:
            return ""
        self._advance()
        return text

    def finish(self) -> str:
        """What is left, an open character included."""
        text = self._text() if self._held else ""
        self._advance()
        return text

    def _text(self) -> str:
        both = self._decode([*self._before, *self._held])
        if both.startswith(self._before_text):
            return both[len(self._before_text) :]
        # Where single bytes are tokens, a run of them is decoded as a whole: a bad one takes the good ones along.
        return self._decode(self._held)

    def _advance(self) -> None:
        self._before, self._held = self._held, []
        self._before_text = self._decode(self._before)

    def _decode(self, ids: list[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=self._skip)


class StopStrings:
    """Ends a text before that of `stops` which is complete first, wherever the pieces of text are cut."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("an empty stop string ends every text")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """What can go out by now. Nothing after a stop string was `found`."""
        if self.found is not None:
            return ""
        text = self._held + piece
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            # Not the one that begins first: it may not be complete yet when another one is.
            _, at, self.found = min(ends)
            self._held = ""
            return text[:at]
        keep = max((begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: the text ended before it became a stop string."""
        held, self._held = self._held, ""
        return held


def begun(text: str, whole: str) -> int:
    """How many characters at the end of `text` `whole` may begin with, without being there in full."""
    for size in range(min(len(whole) - 1, len(text)), 0, -1):
        if whole.startswith(text[len(text) - size :]):
            return size
    return 0
