"""What is wrong with a request is said in OpenAI's shape, with the parameter's name, and is never a fault of the
server."""

import json

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from day0.serve.errors import ascii_json
from day0.serve.limits import Limits
from day0.serve.schemas import NOT_SUPPORTED, ChatRequest, CompletionRequest
from tests.serve.running import running
from tests.serve.spelling import VOCAB, spelling_served

LIMITS = Limits(body_bytes=20_000, prompt_tokens=500, choices=4, stop_strings=3, stop_characters=10, drain_s=2)


@pytest.fixture(scope="module")
def server():
    with running(spelling_served(), limits=LIMITS) as up:
        yield up
        up.wait_until_nothing_is_held()


def refused(answer, status: int) -> dict:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["message"] and "Traceback" not in body["error"]["message"]
    return body["error"]


COMPLETION = {"model": "speller", "prompt": "a"}
CHAT = {"model": "speller", "messages": [{"role": "user", "content": "a"}]}

BOTH = [
    ("temperature", -0.1),
    ("temperature", "warm"),
    ("temperature", "0.7"),
    ("temperature", True),
    ("temperature", float("nan")),
    ("temperature", 1e400),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", 2),
    ("seed", -1),
    ("seed", 2**63),
    ("n", 0),
    ("n", 5),
    ("n", "2"),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 10**9),
    ("max_tokens", 10**30),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {" 1": 1}),
    ("logit_bias", {str(VOCAB): 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": float("nan")}),
    ("logit_bias", [1]),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", list("abcd")),
    ("stop", "x" * 11),
    ("stop", 5),
    ("stop_token_ids", ["a"]),
    ("stream", "yes"),
    ("stream_options", {"include_usage": 1}),
    ("stream_options.colour", {"colour": 1}),
    ("user", "x" * 300),
    ("wrong_name", 1),
    ("response_format", {"type": "json_object"}),
    ("tools", []),
    ("min_tokens", 3),
    ("metadata", {}),
]


@pytest.mark.parametrize(("param", "value"), BOTH, ids=lambda v: ascii(v)[:40])
def test_both_apis_name_the_parameter(server, param, value):
    for path, good in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        body = json.dumps(good | {param.split(".")[0]: value})
        answer = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert refused(answer, 400)["param"] == param
        assert refused(answer, 400)["type"] == "invalid_request_error"


COMPLETIONS_ONLY = [
    ("prompt", ""),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", [""]),
    ("prompt", ["a"] * 5),
    ("prompt", [["a"]]),
    ("prompt", [1, "a"]),
    ("prompt", [1.5]),
    ("prompt", [True]),
    ("prompt", [VOCAB]),
    ("prompt", [-1]),
    ("prompt", [2**70]),
    ("prompt", {"text": "a"}),
    ("prompt", None),
    ("prompt", "x" * 501),
    ("prompt", "\ud800"),
    ("logprobs", 21),
    ("logprobs", -1),
    ("suffix", "a"),
    ("best_of", 2),
    ("echo", 1),
]


@pytest.mark.parametrize(("param", "value"), COMPLETIONS_ONLY, ids=lambda v: ascii(v)[:40])
def test_completions_name_the_parameter(server, param, value):
    answer = server.http.post(
        "/v1/completions",
        content=json.dumps(COMPLETION | {param: value}),
        headers={"Content-Type": "application/json"},
    )
    assert refused(answer, 400)["param"] == param


MESSAGES = [
    [],
    "hello",
    [{"role": "user"}, "a"],
    [{"role": "wizard", "content": "a"}],
    [{"content": "a"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    [{"role": "user", "content": [{"type": "text", "text": 1}]}],
    [{"role": "user", "content": "\ud800"}],
    [{"role": "assistant", "content": "a", "tool_calls": []}],
    [{"role": "user", "content": "refuse"}],
]


@pytest.mark.parametrize("messages", MESSAGES, ids=lambda m: ascii(m)[:60])
def test_messages_that_are_wrong(server, messages):
    answer = server.http.post(
        "/v1/chat/completions",
        content=json.dumps(CHAT | {"messages": messages}),
        headers={"Content-Type": "application/json"},
    )
    assert refused(answer, 400)["param"].split(".")[0] == "messages"


def test_what_chats_ask_in_a_wrong_way(server):
    for wrong, param in (
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"chat_template_kwargs": {"style": "\ud800"}}, "messages"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": []}, "tools"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ):
        answer = server.http.post(
            "/v1/chat/completions",
            content=json.dumps(CHAT | wrong),
            headers={"Content-Type": "application/json"},
        )
        assert refused(answer, 400)["param"] == param, wrong


BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"model": "speller", "prompt": "\xff"}',
    b"[" * 15_000,
    b'{"a":' * 3_000,
    b'{"model": "speller", "prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
    b'{"model": "speller"}',
    b'{"model": "speller", "prompt": "a", "\\ud800": 1}',
]


@pytest.mark.parametrize("body", BODIES, ids=lambda b: ascii(b)[:30])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_bodies_that_are_no_request(server, path, body):
    refused(server.http.post(path, content=body, headers={"Content-Type": "application/json"}), 400)


def test_a_body_of_another_type_is_refused(server):
    refused(
        server.http.post("/v1/completions", content=json.dumps(COMPLETION), headers={"Content-Type": "text/plain"}), 400
    )


def test_a_body_too_large_is_refused_with_and_without_its_length(server):
    def parts():
        for _ in range(30):
            yield b" " * 1000

    assert refused(server.http.post("/v1/completions", content=b" " * 30_000), 413)["code"] == "body_too_large"
    assert refused(server.http.post("/v1/completions", content=parts()), 413)["code"] == "body_too_large"


def test_other_models_paths_and_methods(server):
    for path, good in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT), ("/tokenize", COMPLETION)):
        error = refused(server.http.post(path, json=good | {"model": "gpt"}), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
    refused(server.http.get("/v1/models/gpt"), 404)
    refused(server.http.get("/nothing"), 404)
    refused(server.http.get("/v1/completions"), 405)
    refused(server.http.post("/tokenize", json={"model": "speller"}), 400)


def test_the_openai_client_knows_the_errors(server):
    with pytest.raises(openai.BadRequestError) as bad:
        server.openai.completions.create(**COMPLETION, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        server.openai.completions.create(model="gpt", prompt="a")


ANY_TEXT = st.text(st.characters(), max_size=8)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields, *NOT_SUPPORTED} - {"max_tokens"})
FIELDS.remove("max_completion_tokens")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FIELDS) | ANY_TEXT, ANY_JSON, max_size=3))
def test_no_body_is_a_fault_of_the_server(server, given_fields):
    for path, good in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT), ("/tokenize", COMPLETION)):
        bound = {} if path == "/tokenize" else {"max_tokens": 2}
        body = json.dumps(good | bound | given_fields)
        answer = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.status_code != 200:
            refused(answer, answer.status_code)
        elif answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n")
    assert server.service.not_ready == ""


def test_answers_are_ascii_so_that_no_character_ends_a_line_of_events_or_is_none():
    given = {"text": "é \u2028 \x85", "half": "\ud800"}
    assert ascii_json(given).isascii() and json.loads(ascii_json(given)) == given


def test_a_model_without_a_tokenizer_takes_and_gives_token_ids():
    with running(spelling_served(tokenizer=None, stop_ids=())) as server:
        post = server.http.post
        options = {"model": "speller", "prompt": [97, 98], "max_tokens": 5, "temperature": 0, "return_token_ids": True}
        choice = post("/v1/completions", json=options).json()["choices"][0]
        assert choice["text"] == "" and len(choice["token_ids"]) == 5
        streamed = post("/v1/completions", json=options | {"stream": True}).text.split("\n\n")
        ids = [i for line in streamed[:-2] for i in json.loads(line[6:])["choices"][0]["token_ids"]]
        assert ids == choice["token_ids"] and streamed[-2] == "data: [DONE]"
        for wrong, param in (
            ({"prompt": "a"}, "prompt"),
            ({"return_token_ids": False}, "prompt"),
            ({"stop": "a"}, "stop"),
            ({"echo": True}, "echo"),
        ):
            assert refused(post("/v1/completions", json=options | wrong), 400)["param"] == param
        assert refused(post("/v1/chat/completions", json=CHAT), 400)["param"] == "messages"
        logprobs = post("/v1/completions", json=options | {"logprobs": 1}).json()["choices"][0]["logprobs"]
        assert logprobs["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]
