"""Log-probabilities as JSON can say them."""

from day0.repo.tokenizer import Tokenizer

# Of what cannot be drawn: JSON has no minus infinity.
_LEAST = -9999.0


def finite(logprob: float | None) -> float:
    return _LEAST if logprob is None else max(logprob, _LEAST)


def token_text(tokenizer: Tokenizer | None, token: int) -> str:
    """One token by itself; its id for a model without a tokenizer."""
    return f"token_id:{token}" if tokenizer is None else tokenizer.decode([token], skip_special_tokens=False)


def token_bytes(text: str) -> list[int] | None:
    """The bytes of a token's text; None for a token that is a part of a character."""
    return None if "\ufffd" in text else list(text.encode())
