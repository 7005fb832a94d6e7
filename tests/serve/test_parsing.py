"""Answers taken apart: the same wherever they are cut, and nothing of them lost."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from day0.artifacts.chat import Chat
from day0.language.recipe import shipped_recipes
from day0.serve.parsing import AnswerParser
from day0.serve.tool_calls import ToolCall, parse_call

CHAT = Chat.model_validate(
    {
        "reasoning": {"start": "<think>", "end": "</think>"},
        "tool_calls": {"start": "<tool_call>", "end": "</tool_call>", "forms": ["json", "function_parameters"]},
    }
)
SCHEMAS = {
    "find": {"properties": {"text": {"type": "string"}, "most": {"type": "integer"}, "in": {"type": "array"}}},
    "now": {},
}


def parsed(pieces, *, chat=CHAT, tools=SCHEMAS, in_reasoning=False):
    """(reasoning, text, calls) of an answer that comes in these pieces."""
    parser = AnswerParser(chat, tools=tools, in_reasoning=in_reasoning)
    parts = [*(parser.push(piece) for piece in pieces), parser.finish()]
    calls = [call for part in parts for call in part.calls]
    return "".join(p.reasoning for p in parts), "".join(p.text for p in parts), calls


FIND = '<tool_call>\n{"name": "find", "arguments": {"text": "é</tool_call>", "most": 3}}\n</tool_call>'
FOUND = ToolCall("find", '{"text": "é</tool_call>", "most": 3}')
WRITTEN = (
    "<tool_call>\n<function=find>\n<parameter=text>\n a</parameter>\n\n</parameter>\n"
    "<parameter=most>\n3\n</parameter>\n</function>\n</tool_call>"
)
READ = ToolCall("find", '{"text": " a</parameter>\\n", "most": 3}')
ANSWERS = {
    "plain": ("Hello, <b>you</b>. \n", ("", "Hello, <b>you</b>. \n", [])),
    "empty": ("", ("", "", [])),
    "reasoning": ("<think>\nso it <is>\n</think>\n\nYes. ", ("so it <is>", "Yes. ", [])),
    "no reasoning": ("<think>\n\n</think>\n\nYes.", ("", "Yes.", [])),
    "reasoning only": ("\n<think>so it is ", ("so it is ", "", [])),
    "reasoning later": ("In it <think> begins</think>", ("", "In it <think> begins</think>", [])),
    "call": (FIND, ("", "", [FOUND])),
    "written call": (WRITTEN, ("", "", [READ])),
    "all": (f"<think>a\n\nb</think>I look. \n{FIND}\n{WRITTEN}\n", ("a\n\nb", "I look.", [FOUND, READ])),
    "text between": (f"a {FIND} b {FIND} c", ("", "ab c", [FOUND, FOUND])),
    "call in reasoning": (f"<think>{FIND}</think>x", (FIND, "x", [])),
    "never ends": ('a <tool_call>{"name": "now"', ("", 'a<tool_call>{"name": "now"', [])),
    "no call": (f"<tool_call>nothing</tool_call> then {FIND}", ("", "<tool_call>nothing</tool_call> then", [FOUND])),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', ("", "", [ToolCall("now", "{}")])),
    "half a marker": ("a </think> <tool_cal <tool_", ("", "a </think> <tool_cal <tool_", [])),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_wherever_it_is_cut(name):
    text, expected = ANSWERS[name]
    if name == "text between":
        expected = ("", "a" + "b" + "c", [FOUND, FOUND])  # white space around markers is dropped
    assert parsed([text]) == expected
    assert parsed(list(text)) == expected
    for at in range(len(text) + 1):
        assert parsed([text[:at], text[at:]]) == expected
        assert parsed([text[:at], "", text[at : at + 3], text[at + 3 :]]) == expected


WORDS = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", FIND, WRITTEN, "<", "</", "tool_call>", " ", "\n", "a", "é{"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=12).map("".join), st.data(), st.booleans(), st.booleans())
@example("<tool_call><tool_call></tool_call>" + FIND, None, False, True)
def test_any_answer_is_the_same_in_any_pieces(text, data, in_reasoning, with_tools):
    tools = SCHEMAS if with_tools else None
    cuts = [] if data is None else sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = parsed([text], tools=tools, in_reasoning=in_reasoning)
    assert parsed(pieces, tools=tools, in_reasoning=in_reasoning) == expected
    assert parsed(list(text), tools=tools, in_reasoning=in_reasoning) == expected


@settings(deadline=None)
@given(st.lists(WORDS, max_size=12).map("".join))
def test_without_markers_to_look_for_an_answer_is_its_text(text):
    assert parsed(list(text), chat=Chat()) == ("", text, [])
    assert parsed(list(text), chat=CHAT.model_copy(update={"reasoning": None}), tools=None) == ("", text, [])


def test_reasoning_that_the_prompt_has_begun():
    assert parsed(list("\nso</think>\n\nYes"), in_reasoning=True) == ("so", "Yes", [])
    assert parsed(["so"], in_reasoning=True) == ("so", "", [])


def test_what_can_go_out_goes_out_at_once():
    parser = AnswerParser(CHAT, tools=SCHEMAS, in_reasoning=False)
    assert parser.push("<think>so").reasoning == "so"
    assert parser.push(" it is </thi").reasoning == " it is"
    assert parser.push("s").reasoning == " </this"
    assert parser.push("</think>Yes").text == "Yes"
    assert parser.push(FIND[:-1]).calls == () and parser.push(FIND[-1]).calls == (FOUND,)


NAMES = st.text("abc_", min_size=1, max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(NAMES, v)
)


@settings(deadline=None)
@given(NAMES, st.dictionaries(NAMES, JSON, max_size=4))
def test_a_call_in_json_comes_back(name, arguments):
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    call = parse_call(f"\n{text}\n", ["function_parameters", "json"], {})
    assert call.name == name and json.loads(call.arguments) == arguments


@settings(deadline=None)
@given(
    NAMES,
    st.dictionaries(NAMES, st.text(), max_size=4) | st.dictionaries(NAMES, JSON.filter(lambda v: type(v) is not str)),
)
def test_a_call_in_parameters_comes_back_as_the_tools_schema_types_it(name, arguments):
    """Strings as they are, all else as JSON: as the families' templates write it."""
    schema = {"properties": {k: {"type": "string" if type(v) is str else "array"} for k, v in arguments.items()}}
    values = {k: v if type(v) is str else json.dumps(v) for k, v in arguments.items()}
    if any("</parameter>" in value or "<parameter=" in value for value in values.values()):
        return
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    call = parse_call(f"<function={name}>\n{inside}</function>", ["json", "function_parameters"], {name: schema})
    assert call.name == name and json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '"name"',
        '{"name": ""}',
        '{"name": 1}',
        r'{"name": "\ud800"}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "more": 1}',
        '{"name": "f"} and more',
        '{"name": "f", "arguments": ' + "[" * 100_000,
        "<function=f>",
        "<function=></function>",
        "<function=f</function>",
        "<function=f><parameter=a>1</function>",
        "<function=f>more</function>",
        "<function=f><parameter=a>1</parameter>more</function>",
    ],
)
def test_what_is_no_call(text):
    assert parse_call(text, ["json", "function_parameters"], {}) is None


def test_half_a_surrogate_pair_stays_an_escape():
    call = parse_call(r'{"name": "f", "arguments": {"x": "\ud800é"}}', ["json"], {})
    assert call == ToolCall("f", r'{"x": "\ud800\u00e9"}')


def test_a_value_that_is_not_what_the_schema_says_stays_a_string():
    call = parse_call("<function=find><parameter=most>many</parameter></function>", ["function_parameters"], SCHEMAS)
    assert call == ToolCall("find", '{"most": "many"}')
    null = parse_call("<function=find><parameter=most>null</parameter></function>", ["function_parameters"], SCHEMAS)
    assert null == ToolCall("find", '{"most": null}')
    unknown = parse_call("<function=other><parameter=a>1</parameter></function>", ["function_parameters"], SCHEMAS)
    assert unknown == ToolCall("other", '{"a": "1"}')


def test_the_shipped_recipes_say_how_answers_are_written():
    found = {name: recipe.chat for name, recipe in shipped_recipes().items() if recipe.chat != Chat()}
    assert set(found) == {"qwen3_next", "qwen3_5", "deepseek_v32"}
    for chat in found.values():
        assert parsed(list("<think>a</think>b"), chat=chat) == ("a", "b", [])
    assert parsed([FIND + WRITTEN], chat=found["qwen3_next"])[2] == [FOUND, READ]
    assert parsed([WRITTEN], chat=found["qwen3_5"])[2] == [READ]
