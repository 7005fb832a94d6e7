"""Requests and answers of the HTTP API, as the OpenAI API has them; what is beyond it is marked.

A request with a field that is not here is refused: no parameter is ever ignored.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# Parameters that clients know from elsewhere: refused by name, not as a misspelling.
NOT_SUPPORTED = frozenset(
    "audio best_of frequency_penalty_decay function_call functions guided_json metadata min_tokens modalities "
    "parallel_tool_calls prediction prompt_cache_key prompt_logprobs reasoning_effort response_format "
    "safety_identifier service_tier store structured_outputs suffix tool_choice tools truncate_prompt_tokens "
    "use_beam_search verbosity web_search_options".split()
)

Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenIds = list[int]


class _Given(BaseModel):
    """Of a request: nothing is converted, nothing unknown is taken."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Given):
    include_usage: bool = False


class Generating(_Given):
    """What completions and chat completions have in common. Not in OpenAI's API: top_k, min_p, repetition_penalty,
    stop_token_ids, ignore_eos, skip_special_tokens, return_token_ids."""

    model: str
    max_tokens: int | None = None
    n: int | None = None
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: int | None = None
    min_p: Finite | None = None
    seed: int | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repetition_penalty: Finite | None = None
    logit_bias: dict[str, Finite] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=256, description="Stands in the server's log")

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n


class CompletionRequest(Generating):
    prompt: str | TokenIds | list[str] | list[TokenIds]
    logprobs: int | None = None
    echo: bool = False


class TextPart(_Given):
    type: Literal["text"]
    text: str


class Message(_Given):
    """One turn. Content in parts is joined, and parts are text only."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: None = None


class ChatRequest(Generating):
    """`chat_template_kwargs`, which is not in OpenAI's API, are the template's own switches."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(_Given):
    """A text or a conversation, one of both."""

    model: str
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeAnswer(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]


class CachedTokens(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """`cached_tokens` of the prompt were in memory already."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class CompletionLogprobs(BaseModel):
    """One entry a token; `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """`token_ids` and `prompt_token_ids` are there when the request has return_token_ids."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TokenLogprob(BaseModel):
    """`bytes` is null for a token that is no whole character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChosenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChosenLogprob]


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    token_ids: list[int] = []


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = []


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] = []


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] = []


class Model(BaseModel):
    """`max_model_len`: most tokens of prompt and answer together."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["day0"] = "day0"
    max_model_len: int


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


def dump(answer: BaseModel) -> dict[str, Any]:
    """The fields that an answer was given; those left at their defaults are left out."""
    return answer.model_dump(mode="json", exclude_unset=True)
