"""The repo's tokenizer: text to token ids and back, special tokens, stop ids, chat template."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from day0.errors import Day0Error

if TYPE_CHECKING:
    import tokenizers

    from day0.repo.model_repo import ModelRepo

TOKENIZER = "tokenizer.json"


class Tokenizer:
    """A `tokenizers` tokenizer with what the repo's configs say about it. Build it with `Tokenizer.of_repo`."""

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        *,
        special_tokens: dict[str, str],
        eos_ids: tuple[int, ...],
        chat_template: str | None,
    ) -> None:
        self.backend = backend
        self.special_tokens = special_tokens
        self.eos_ids = eos_ids
        self.chat_template = chat_template

    @classmethod
    def of_repo(cls, repo: "ModelRepo") -> "Tokenizer":
        """Load the repo's tokenizer.json. Raises Day0Error when there is none, or it does not load."""
        if TOKENIZER not in repo.file_names:
            raise Day0Error(
                f"{repo.source} has no {TOKENIZER}",
                hint="write one with transformers: AutoTokenizer.from_pretrained(repo).save_pretrained(folder)",
            )
        from tokenizers import Tokenizer as Backend

        content = repo.read_text(TOKENIZER)
        try:
            backend = Backend.from_str(content)
        except Exception as error:  # tokenizers raises plain Exception for every defect of the file
            raise Day0Error(f"{TOKENIZER} does not load ({error})", hint=f"correct {TOKENIZER} in the repo") from error
        special_tokens = _special_tokens(repo.tokenizer_config)
        stop_ids = eos_ids(repo.generation_config, repo.config)
        if not stop_ids and "eos_token" in special_tokens:
            eos_id = backend.token_to_id(special_tokens["eos_token"])
            stop_ids = () if eos_id is None else (eos_id,)
        return cls(backend, special_tokens=special_tokens, eos_ids=stop_ids, chat_template=repo.chat_template)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included (the model's embedding may be padded beyond it)."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens written in the text are recognised either way."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Ids past the vocabulary, which a padded embedding can produce, are no text."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Prompt text of a conversation by the repo's chat template.

        `messages` are `{"role": ..., "content": ...}` of plain JSON types; `variables` are the template's own switches
        (such as `enable_thinking`). Raises Day0Error: no template, or it fails (see `render_template`).
        """
        if self.chat_template is None:
            raise Day0Error("the repo has no chat template", hint="give plain text, or add chat_template.jinja")
        from day0.repo.chat_template import render_template

        given = dict(variables or {})
        standard = {
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        taken = sorted(given.keys() & standard.keys())
        if taken:
            raise Day0Error(f"template variable {taken[0]} is set by the call itself", hint=f"leave {taken[0]} out")
        return render_template(self.chat_template, self.special_tokens | given | standard)


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token`, ... -> its text; each is a string or an object with `content`."""
    tokens: dict[str, str] = {}
    for key, value in tokenizer_config.items():
        if key.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[key] = text
    return tokens


def eos_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Stop ids of the first config (or its `text_config`) that names any; give generation_config before config.

    Raises Day0Error for an eos_token_id that is no token id or list of them.
    """
    for config in configs:
        text_config = config.get("text_config")
        for section in (config, text_config if isinstance(text_config, dict) else {}):
            value = section.get("eos_token_id")
            if value is not None:
                ids: Iterable[Any] = value if isinstance(value, list) else [value]
                ids = tuple(ids)
                if not ids or not all(type(one) is int and one >= 0 for one in ids):
                    raise Day0Error(
                        f"eos_token_id is {value!r}, not a token id or a list of them",
                        hint="correct eos_token_id in generation_config.json or config.json",
                    )
                return tuple(dict.fromkeys(ids))
    return ()
