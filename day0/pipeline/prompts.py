"""A file of prompts for an offline batch: a prompt a line, or JSON lines whose options are each prompt's own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from day0.artifacts.regular import regular
from day0.errors import Day0Error

if TYPE_CHECKING:
    from day0.engine.request import Sampling

JSON_LINES = (".jsonl", ".ndjson")
_HINT = (
    f"write a prompt a line, or in a {JSON_LINES[0]} file an object a line with prompt or prompt_ids and its options"
)
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class Prompt(BaseModel):
    """One line of a JSON lines file. Options mean what they do in a request to the server, but for the temperature,
    which is 0 where nothing is said."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: str | None = None
    prompt_ids: list[int] | None = None
    max_tokens: int | None = None
    temperature: _Finite = 0.0
    top_k: int = 0
    top_p: _Finite = 1.0
    min_p: _Finite = 0.0
    seed: int = 0
    presence_penalty: _Finite = 0.0
    frequency_penalty: _Finite = 0.0
    repetition_penalty: _Finite = 1.0
    stop_token_ids: list[int] = []
    ignore_eos: bool = False


@dataclass(frozen=True)
class Asked:
    """A prompt as token ids and how to continue it; `where` names its line for errors."""

    where: str
    ids: tuple[int, ...]
    sampling: "Sampling"


def read_prompts(
    path: Path, *, max_tokens: int, stop_ids: tuple[int, ...], encode: Callable[[str], list[int]]
) -> list[Asked]:
    """The file's prompts in order. `max_tokens` is for prompts that do not say their own, `stop_ids` are the model's.

    Raises Day0Error, naming the line: nothing there, no JSON object, an unknown or wrong option.
    """
    try:
        text = regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Day0Error(f"cannot read {path}: {error}", hint=_HINT) from error
    # Not splitlines, which also splits at characters that may stand within a prompt.
    lines = text.removesuffix("\n").split("\n")
    if lines == [""]:
        raise Day0Error(f"{path} holds no prompt", hint=_HINT)
    parse = _of_json if path.suffix in JSON_LINES else lambda line: Prompt(prompt=line)
    found = []
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        try:
            found.append(_asked(where, parse(line), max_tokens, stop_ids, encode))
        except Day0Error as error:
            raise Day0Error(f"{where}: {error.message}", hint=error.hint) from error
    return found


def _of_json(line: str) -> Prompt:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Day0Error(f"no JSON: {error}", hint=_HINT) from error
    if not isinstance(data, dict):
        raise Day0Error("no JSON object", hint=_HINT)
    try:
        return Prompt.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise Day0Error(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", hint=_HINT) from error


def _asked(
    where: str, prompt: Prompt, max_tokens: int, stop_ids: tuple[int, ...], encode: Callable[[str], list[int]]
) -> Asked:
    from day0.engine.request import Sampling

    if (prompt.prompt is None) == (prompt.prompt_ids is None):
        raise Day0Error("give one of prompt and prompt_ids", hint=_HINT)
    ids = encode(prompt.prompt) if prompt.prompt is not None else prompt.prompt_ids or []
    own = () if prompt.ignore_eos else stop_ids
    options = prompt.model_dump(exclude={"prompt", "prompt_ids", "max_tokens", "stop_token_ids", "ignore_eos"})
    most = max_tokens if prompt.max_tokens is None else prompt.max_tokens
    stops = frozenset((*own, *prompt.stop_token_ids))
    return Asked(where, tuple(ids), Sampling(max_tokens=most, logprobs=0, stop_ids=stops, **options))
