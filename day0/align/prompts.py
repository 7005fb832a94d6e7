"""The prompts that align runs: random ids of odd lengths, one with an end-of-sequence id in the middle; and text."""

from collections.abc import Sequence

import torch

from day0.artifacts.alignment import Prompt
from day0.errors import Day0Error
from day0.repo.model_repo import ModelRepo

# No multiple of a page (64), a chunk (16, 32, 64) or a pool (2, 4); the longest crosses two page borders.
LENGTHS = (37, 61, 97, 131)
# Invariance decodes the last 19 of a prompt's tokens one by one, after a prefill of some.
LEAST = 24

TEXTS = {
    "code": "def mean(values):\n    if not values:\n        return 0.0\n    return sum(values) / len(values)\n\n\ndef",
    "prose": "The river had risen in the night, and by morning the lower fields lay under water. Nobody in the village",
}


def random_prompts(
    vocab_size: int, end_ids: Sequence[int], *, max_positions: int | None = None, seed: int = 0, room: int = 0
) -> list[Prompt]:
    """One prompt for each of LENGTHS, the second with an end id in the middle.

    Lengths are cut so that `room` more tokens fit in `max_positions`. Raises Day0Error when fewer than
    LEAST tokens are left for a prompt.
    """
    longest = max(LENGTHS) if max_positions is None else max_positions - room
    if longest < LEAST:
        raise Day0Error(
            f"{max_positions} positions less {room} greedy tokens leave {longest} for a prompt, {LEAST} are needed",
            hint="lower --greedy-tokens or use a longer context",
        )
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(0, vocab_size, (min(length, longest),), generator=generator).tolist()
        note = ""
        if number == 1 and end_ids:
            ids[len(ids) // 2] = end_ids[0]
            note = f"end id {end_ids[0]} in the middle"
        prompts.append(Prompt(name=f"random {number + 1}", ids=tuple(ids), note=note))
    return prompts


def text_prompts(repo: ModelRepo, *, max_positions: int | None = None, room: int = 0) -> list[Prompt]:
    """A piece of code and a piece of prose in the repo's tokens; [] for a repo without a tokenizer.

    Cut so that `room` more tokens fit in `max_positions`.
    """
    if "tokenizer.json" not in repo.file_names:
        return []
    longest = None if max_positions is None else max_positions - room
    encoded = {name: repo.tokenizer.encode(text)[:longest] for name, text in TEXTS.items()}
    return [Prompt(name=name, ids=tuple(ids), note="text") for name, ids in encoded.items() if ids]


def given_prompts(
    repo: ModelRepo, texts: Sequence[str], *, max_positions: int | None = None, room: int = 0
) -> list[Prompt]:
    """A user's own texts as prompts, whole. Raises Day0Error: no tokens, or `room` more do not fit behind them."""
    prompts = []
    for number, text in enumerate(texts, start=1):
        ids = repo.tokenizer.encode(text)
        if not ids:
            raise Day0Error(f"the prompt {text!r} has no tokens", hint="give a longer text")
        if max_positions is not None and len(ids) + room > max_positions:
            raise Day0Error(
                f"text {number} has {len(ids)} tokens: with {room} more it is too long for {max_positions} positions",
                hint="shorten it, or lower --greedy-tokens",
            )
        prompts.append(Prompt(name=f"text {number}", ids=tuple(ids), note="text"))
    return prompts
