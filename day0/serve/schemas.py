"""Requests and answers of the HTTP API, as the OpenAI API has them; what is beyond it is marked.

A request with a field that is not here is refused: no parameter is ever ignored.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Parameters that clients know from elsewhere: refused by name, not as a misspelling.
NOT_SUPPORTED = frozenset(
    "audio best_of frequency_penalty_decay function_call functions guided_json metadata min_tokens modalities "
    "parallel_tool_calls prediction prompt_cache_key prompt_logprobs reasoning_effort response_format "
    "safety_identifier service_tier store structured_outputs suffix truncate_prompt_tokens "
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


class FunctionCalled(_Given):
    """`arguments` is a JSON object, as text."""

    name: str
    arguments: str


class ToolCalled(_Given):
    """A call that the assistant made before."""

    id: str
    type: Literal["function"]
    function: FunctionCalled
    index: int | None = None  # of those that clients put together from a stream


class Function(_Given):
    """`parameters` is a JSON schema, which the model is shown but not held to: strict must not be true."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Given):
    type: Literal["function"]
    function: Function


class FunctionChoice(_Given):
    type: Literal["function"]
    function: dict[str, Any]


class Message(_Given):
    """One turn. Content in parts is joined, and parts are text only."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCalled], Field(min_length=1)] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    @model_validator(mode="after")
    def _each_role_has_its_own(self) -> Self:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("tool_calls are the assistant's")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError("tool_call_id is a tool's")
        return self


class ChatRequest(Generating):
    """`chat_template_kwargs`, which is not in OpenAI's API, are the template's own switches."""

    messages: list[Message]
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(_Given):
    """A text or a conversation, one of both."""

    model: str
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
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


class FunctionCall(BaseModel):
    name: str
    arguments: str


class ToolCallMade(BaseModel):
    """`index` stands in streams only, where each call comes whole."""

    index: int | None = None
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(BaseModel):
    """`reasoning_content`, which is not in OpenAI's API, and `tool_calls` are there when the answer has any."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallMade] = []
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
    reasoning_content: str | None = None
    tool_calls: list[ToolCallMade] = []


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
