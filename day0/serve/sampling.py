"""How a request's next tokens are drawn, from what the client says."""

import secrets
from typing import Any

from day0.engine.request import Sampling
from day0.errors import Day0Error
from day0.serve.errors import ApiError, bad_request
from day0.serve.limits import Limits
from day0.serve.schemas import Generating

_SEEDS = 2**63
_SAME_NAMES = ("top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty")


def sampling_of(
    asked: Generating, *, max_tokens: int, logprobs: int | None, stop_ids: tuple[int, ...], vocab_size: int
) -> Sampling:
    """temperature and top_p are 1 where the request says nothing, as in OpenAI's API, and the seed is a random one.

    `stop_ids` are the model's own. Raises ApiError, 400.
    """
    given: dict[str, Any] = {name: value for name in _SAME_NAMES if (value := getattr(asked, name)) is not None}
    given.setdefault("seed", secrets.randbelow(_SEEDS))
    if given.get("top_k") == -1:  # how other servers write that any token may be drawn
        given["top_k"] = 0
    own = () if asked.ignore_eos else stop_ids
    try:
        return Sampling(
            max_tokens=max_tokens,
            temperature=1.0 if asked.temperature is None else asked.temperature,
            logit_bias=_logit_bias(asked, vocab_size),
            stop_ids=frozenset((*own, *(asked.stop_token_ids or ()))),
            logprobs=logprobs,
            **given,
        )
    except Day0Error as error:
        raise bad_request(error, fields=type(asked).model_fields) from error


def seed_of_choice(seed: int, choice: int) -> int:
    """Each choice of a prompt has a seed of its own, the first one that of the request."""
    return (seed + choice) % _SEEDS


def stops_of(asked: Generating, limits: Limits) -> tuple[str, ...]:
    """The stop strings. Raises ApiError: too many, too long, or empty."""
    stops = () if asked.stop is None else (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop)
    if len(stops) > limits.stop_strings:
        raise _wrong("stop", f"{len(stops)} strings, the server takes {limits.stop_strings}")
    if any(not stop for stop in stops):
        raise _wrong("stop", "an empty string would end every text")
    if any(len(stop) > limits.stop_characters for stop in stops):
        raise _wrong("stop", f"a string has more than {limits.stop_characters} characters")
    return stops


def _logit_bias(asked: Generating, vocab_size: int) -> dict[int, float]:
    bias = {}
    for name, value in (asked.logit_bias or {}).items():
        # Not int() alone: it takes what is no token id, as " 1_0".
        if not (name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < vocab_size):
            raise _wrong("logit_bias", f"{name[:20]!r} is no token id of this model")
        bias[int(name)] = value
    return bias


def _wrong(param: str, what: str) -> ApiError:
    return ApiError(400, f"{param}: {what}", param=param, code="invalid_value")
