"""Reasoning and tool calls through the API, asked by the real openai client."""

import json

import openai
import pytest

from day0.pipeline.serving import chat_of
from day0.repo.tokenizer import Tokenizer
from tests.serve.running import running
from tests.serve.spelling import END, SpellingModel, byte_tokenizer, spelling_engine, spelling_served
from tests.serve.test_parsing import CHAT, FIND, FOUND, READ, SCHEMAS, WRITTEN

# Longer than the known answer's prompt, so that the script below stays out of its way.
TEMPLATE = """\
{%- if tools %}tools:{% for tool in tools %}{{ tool.function.name }} {{ tool.function.parameters | tojson }};
{%- endfor %}
{{- tool_choice }}{% endif %}
{%- for m in messages %}<{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}>{{ m.content }}
{%- if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}
{%- for call in m.tool_calls or [] %}{{ call.function.name }}
{%- for k, v in call.function.arguments.items() %}({{ k }}={{ v }}){% endfor %}{% endfor %}
{%- endfor %}
-- the assistant's turn begins here --{% if thinking %}<think>
{% endif %}"""
MESSAGES = [{"role": "user", "content": "where is é?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "a tool", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


class ScriptedModel(SpellingModel):
    """Writes `script` from the position `begins` on, and then <end>."""

    def __init__(self):
        super().__init__()
        self.script: list[int] = []
        self.begins = 10**9

    def __call__(self, batch, memory):
        logits = super().__call__(batch, memory)
        for row, position in enumerate(batch.positions.tolist()):
            at = position + 1 - self.begins
            if at >= 0:
                logits[row] = -30.0
                logits[row, self.script[at] if at < len(self.script) else END] = 30.0
        return logits


@pytest.fixture(scope="module")
def scripted():
    """(server, a function that has the model answer a text to a chat, and gives the prompt)."""
    model = ScriptedModel()
    plain = byte_tokenizer()
    tokenizer = Tokenizer(plain.backend, special_tokens={}, eos_ids=(END,), chat_template=TEMPLATE)
    with running(spelling_served(spelling_engine(model), tokenizer=tokenizer, chat=CHAT)) as up:

        def script(text: str, **asked):
            asked = {"model": "speller", "messages": MESSAGES} | asked
            ids = up.http.post("/tokenize", json=asked).json()["tokens"]
            model.script, model.begins = list(text.encode()), len(ids)
            return plain.decode(ids)

        yield up, script
        up.wait_until_nothing_is_held()


def asked_both_ways(server, **options) -> list[dict]:
    """What the client makes of an answer, whole and as a stream: reasoning, content, calls, why it ended."""
    whole = server.openai.chat.completions.create(model="speller", messages=MESSAGES, temperature=0, **options)
    message = whole.choices[0].message
    calls = [(call.type, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    assert all(call.id.startswith("call_") for call in message.tool_calls or ())
    first = {
        "reasoning": getattr(message, "reasoning_content", None) or "",
        "content": message.content,
        "calls": calls,
        "finish": whole.choices[0].finish_reason,
    }
    # The client's own accumulation of a stream, which raises where deltas do not fit together.
    with server.openai.chat.completions.stream(model="speller", messages=MESSAGES, temperature=0, **options) as stream:
        reasoning = ""
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                reasoning += getattr(event.chunk.choices[0].delta, "reasoning_content", None) or ""
        choice = stream.get_final_completion().choices[0]
    calls = [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    second = {
        "reasoning": reasoning,
        "content": choice.message.content or None,
        "calls": calls,
        "finish": choice.finish_reason,
    }
    return [first, second]


def called(*calls):
    return [("function", call.name, call.arguments) for call in calls]


def test_reasoning_text_and_calls_are_told_apart(scripted):
    server, script = scripted
    script(f"<think>\nI look é\n</think>\n\nJust a moment.\n{FIND}\n{WRITTEN}", tools=TOOLS)
    for one in asked_both_ways(server, tools=TOOLS):
        assert one == {
            "reasoning": "I look é",
            "content": "Just a moment.",
            "calls": called(FOUND, READ),
            "finish": "tool_calls",
        }
    script(FIND, tools=TOOLS)
    for one in asked_both_ways(server, tools=TOOLS, tool_choice="auto"):
        assert one == {"reasoning": "", "content": None, "calls": called(FOUND), "finish": "tool_calls"}
    script("<think>a</think>No tool is needed.", tools=TOOLS)
    for one in asked_both_ways(server, tools=TOOLS):
        assert one == {"reasoning": "a", "content": "No tool is needed.", "calls": [], "finish": "stop"}


def test_a_prompt_that_opens_the_reasoning_itself(scripted):
    server, script = scripted
    switches = {"chat_template_kwargs": {"thinking": True}}
    assert script("so\n</think>\nYes", **switches).endswith("<think>\n")
    for one in asked_both_ways(server, extra_body=switches):
        assert one == {"reasoning": "so", "content": "Yes", "calls": [], "finish": "stop"}


def test_an_answer_cut_short_has_what_is_there_as_text(scripted):
    server, script = scripted
    script(FIND, tools=TOOLS)
    options = {"model": "speller", "messages": MESSAGES, "tools": TOOLS, "temperature": 0, "max_tokens": 20}
    whole = server.openai.chat.completions.create(**options).choices[0]
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == (FIND[:20], None, "length")
    chunks = [chunk.choices[0] for chunk in server.openai.chat.completions.create(**options, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == FIND[:20]
    assert chunks[-1].finish_reason == "length" and not any(chunk.delta.tool_calls for chunk in chunks)


def test_without_tools_and_with_none_chosen_calls_are_text(scripted):
    server, script = scripted
    assert "tools:" not in script(FIND)
    for one in asked_both_ways(server):
        assert one["content"] == FIND and one["calls"] == []
    assert "tools:" not in script(FIND, tools=TOOLS, tool_choice="none")
    for one in asked_both_ways(server, tools=TOOLS, tool_choice="none"):
        assert one["content"] == FIND and one["finish"] == "stop"


def test_the_template_sees_tools_and_earlier_calls(scripted):
    server, script = scripted
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"text": "é", "most": 3}'}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "here"},
    ]
    prompt = script("It is here.", tools=TOOLS, messages=turns)
    assert prompt.startswith('tools:find {"properties": {"text": {"type": "string"}')
    assert "auto<user>where is é?<assistant>[hm]find(text=é)(most=3)<tool call_1>here" in prompt
    done = server.openai.chat.completions.create(model="speller", messages=turns, tools=TOOLS, temperature=0)
    assert done.choices[0].message.content == "It is here."


def test_choices_are_read_apart(scripted):
    server, script = scripted
    script(f"<think>a</think>b{FIND}", tools=TOOLS)
    stream = server.openai.chat.completions.create(
        model="speller", messages=MESSAGES, tools=TOOLS, temperature=0, n=3, stream=True
    )
    text, calls = ["", "", ""], [[], [], []]
    for chunk in stream:
        for choice in chunk.choices:
            text[choice.index] += choice.delta.content or ""
            calls[choice.index] += [call.index for call in choice.delta.tool_calls or ()]
    assert text == ["b"] * 3 and calls == [[0]] * 3


BAD = {
    "required": ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice", "cannot hold a model to calling"),
    "named": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "find"}}},
        "tool_choice",
        "cannot hold a model to calling",
    ),
    "other": ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "tool_choice"),
    "no tools": ({"tool_choice": "auto"}, "tool_choice", "there are no tools"),
    "empty": ({"tools": []}, "tools", "leave it out"),
    "twice": ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "the same name"),
    "strict": (
        {"tools": [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]},
        "tools",
        "cannot hold a model to a schema",
    ),
    "name": ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "tools"),
    "more": ({"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}, None, "x"),
    "arguments": (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}],
                }
            ]
        },
        "messages",
        "no JSON object",
    ),
    "user calls": (
        {
            "messages": [
                {
                    "role": "user",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                }
            ]
        },
        "messages",
        "the assistant's",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_honoured_is_a_400_that_names_it(scripted, name):
    wrong, param, words = BAD[name]
    server, _ = scripted
    answer = server.http.post("/v1/chat/completions", json={"model": "speller", "messages": MESSAGES} | wrong)
    error = answer.json()["error"]
    assert answer.status_code == 400 and words in error["message"]
    assert param is None or error["param"] == param


def test_a_model_that_knows_no_tools_takes_none():
    knows = byte_tokenizer()
    with (
        running(spelling_served(chat=CHAT)) as server,
        pytest.raises(openai.BadRequestError, match="template has none"),
    ):
        server.openai.chat.completions.create(model="speller", messages=MESSAGES, tools=TOOLS)
    knows.chat_template = TEMPLATE
    with running(spelling_served(tokenizer=knows)) as server:
        with pytest.raises(openai.BadRequestError, match="recipe does not say"):
            server.openai.chat.completions.create(model="speller", messages=MESSAGES, tools=TOOLS)


def test_the_packages_recipe_says_how_its_answers_are_written(tmp_path):
    from day0.artifacts.chat import Chat
    from day0.language.recipe import load_recipe, write_recipe

    assert chat_of(tmp_path) == Chat()
    recipe = load_recipe("qwen3_next")
    (tmp_path / "recipe.yaml").write_text(write_recipe(recipe))
    assert chat_of(tmp_path) == recipe.chat != Chat()
    assert json.loads(recipe.chat.model_dump_json())["tool_calls"]["forms"] == ["json", "function_parameters"]
