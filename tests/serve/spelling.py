"""The counting model behind a tokenizer: a model whose every answer is exact, and is text with characters of several
bytes."""

from dataclasses import replace

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from day0.engine.engine import Engine
from day0.engine.memory.store import Store
from day0.engine.request import Request, Sampling
from day0.kernels.interface.batch import Batch
from day0.kernels.interface.memory import Memory
from day0.repo.tokenizer import Tokenizer
from day0.serve.health import KnownAnswer
from day0.serve.service import Served
from tests.engine.counting_model import STATEFUL, VOCABULARY, CountingModel

CHAT_TEMPLATE = """\
{%- for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor -%}
{%- if messages[0].content == "refuse" %}{{ raise_exception("not this one") }}{% endif -%}
{%- if style %}[{{ style }}]{% endif -%}
<end>assistant:"""

END = 256
VOCAB = 257
# What the counting model's numbers spell: letters, a space, and the bytes of "é" and "€", mostly in disorder.
SPELLED = [ord("a"), ord("b"), ord(" "), 0xC3, 0xA9, 0xE2, 0x82, 0xAC, ord("c"), ord("d"), ord("e")]
assert len(SPELLED) == VOCABULARY


def byte_tokenizer() -> Tokenizer:
    """Ids 0-255 are the bytes, 256 is the special token <end>."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))  # as byte-level BPE writes the bytes that cannot be printed
    characters = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    backend = Backend(models.BPE(vocab={character: byte for byte, character in enumerate(characters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return Tokenizer(backend, special_tokens={"eos_token": "<end>"}, eos_ids=(END,), chat_template=CHAT_TEMPLATE)


class SpellingModel:
    """Counts with each byte's remainder, and answers with one of SPELLED. `before_step` may do anything first."""

    def __init__(self, *, wild: bool = True) -> None:
        self.layout = STATEFUL.model_copy(update={"vocab_size": VOCAB})
        self._counting = CountingModel(STATEFUL, wild=wild)
        self.before_step = lambda batch: None

    def __call__(self, batch: Batch, memory: Memory) -> Tensor:
        self.before_step(batch)
        counted = self._counting(replace(batch, token_ids=batch.token_ids % VOCABULARY), memory)
        logits = torch.full((len(counted), VOCAB), -30.0)
        logits[:, SPELLED] = counted
        return logits


def spelling_engine(
    model: SpellingModel | None = None, *, pages: int = 200, slots: int = 64, max_running: int = 16, **options
) -> Engine:
    model = model or SpellingModel()
    store = Store(model.layout, pages=pages, slots=slots, dtype=torch.float32, poison=True)
    return Engine(model, store, max_running=max_running, step_tokens=256, **options)


def answer_alone(prompt: tuple[int, ...], sampling: Sampling) -> Request:
    """A request to its end in an engine of its own."""
    store = Store(SpellingModel().layout, pages=200, slots=4, dtype=torch.float32, reuse=False)
    request = Request(prompt, sampling)
    Engine(SpellingModel(), store, max_running=1, step_tokens=4096).run([request])
    return request


KNOWN_PROMPT = tuple(b"what is known")
KNOWN = KnownAnswer(KNOWN_PROMPT, tuple(answer_alone(KNOWN_PROMPT, Sampling(max_tokens=6)).output))


def spelling_served(engine: Engine | None = None, **changes) -> Served:
    served = Served("speller", engine or spelling_engine(), byte_tokenizer(), (END,), KNOWN, max_running=16)
    return replace(served, **changes)
