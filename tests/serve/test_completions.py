"""/v1/completions and /v1/chat/completions, asked by the real openai client."""

import threading

import pytest

from day0.engine.request import Sampling
from tests.serve.running import running
from tests.serve.spelling import END, SPELLED, answer_alone, byte_tokenizer, spelling_served

PROMPT = "some words to begin with, é€ too"


@pytest.fixture(scope="module")
def server():
    with running(spelling_served()) as up:
        yield up
        up.wait_until_nothing_is_held()


def text_alone(prompt: str, **sampling) -> str:
    request = answer_alone(tuple(prompt.encode()), Sampling(**sampling))
    return byte_tokenizer().decode(request.output)


def test_a_completion_is_what_the_engine_gives_alone(server):
    done = server.openai.completions.create(model="speller", prompt=PROMPT, max_tokens=40, temperature=0)
    assert done.choices[0].text == text_alone(PROMPT, max_tokens=40)
    assert done.choices[0].finish_reason == "length"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (len(PROMPT.encode()), 40)
    assert done.object == "text_completion" and done.id.startswith("cmpl-") and done.model == "speller"


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_stream_gives_the_same_text_and_no_half_character(server, temperature):
    options = dict(model="speller", prompt=PROMPT, max_tokens=60, temperature=temperature, seed=11)
    whole = server.openai.completions.create(**options)
    stream = server.openai.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert len(chunks) > 20
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert whole.choices[0].text == text_alone(PROMPT, max_tokens=60, temperature=temperature, seed=11)
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert all(c.usage is None for c in chunks[:-1])
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT.encode()), 60)
    assert len({c.id for c in chunks}) == 1


def test_usage_says_what_of_the_prompt_was_in_memory(server):
    first = "a prompt of more than a page of tokens, which is long enough to be kept for the one that comes after it"
    options = dict(model="speller", max_tokens=5, temperature=0)
    answer = server.openai.completions.create(prompt=first, **options)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    second = server.openai.completions.create(prompt=first + " and more", n=2, **options)
    assert second.usage.prompt_tokens_details.cached_tokens == len(first)
    assert second.choices[0].text == text_alone(first + " and more", max_tokens=5)


def test_prompts_as_token_ids_and_in_batches(server):
    ids = list(PROMPT.encode())
    options = dict(model="speller", max_tokens=12, temperature=0)
    text = text_alone(PROMPT, max_tokens=12)
    other = text_alone("other", max_tokens=12)
    for prompt, expected in (
        (ids, [text]),
        ([PROMPT, "other"], [text, other]),
        ([ids, list(b"other")], [text, other]),
    ):
        done = server.openai.completions.create(prompt=prompt, **options)
        assert [c.text for c in done.choices] == expected
        assert [c.index for c in done.choices] == list(range(len(expected)))
        chunks = list(server.openai.completions.create(prompt=prompt, **options, stream=True))
        streamed = ["".join(c.choices[0].text for c in chunks if c.choices[0].index == i) for i in range(len(expected))]
        assert streamed == expected


def test_n_choices_have_seeds_of_their_own(server):
    options = dict(model="speller", prompt=PROMPT, max_tokens=20, temperature=1.5)
    done = server.openai.completions.create(**options, n=3, seed=5)
    assert [c.text for c in done.choices] == [
        text_alone(PROMPT, max_tokens=20, temperature=1.5, seed=5 + i) for i in range(3)
    ]
    assert done.usage.prompt_tokens == len(PROMPT.encode()) and done.usage.completion_tokens == 60
    unseeded = {server.openai.completions.create(**options).choices[0].text for _ in range(3)}
    assert len(unseeded) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"top_p": 0.5},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.0},
        {"extra_body": {"top_k": 2}},
        {"extra_body": {"min_p": 0.2}},
        {"extra_body": {"repetition_penalty": 1.4}},
        {"logit_bias": {str(SPELLED[0]): 4.0}},
    ],
    ids=lambda given: str(given),
)
def test_each_way_of_drawing_reaches_the_engine(server, given):
    options = dict(model="speller", prompt=PROMPT, max_tokens=30, temperature=1.2, seed=3)
    plain = {name: value for name, value in given.items() if name != "extra_body"} | given.get("extra_body", {})
    if "logit_bias" in plain:
        plain["logit_bias"] = {int(k): v for k, v in plain["logit_bias"].items()}
    expected = text_alone(PROMPT, max_tokens=30, temperature=1.2, seed=3, **plain)
    assert server.openai.completions.create(**options, **given).choices[0].text == expected
    assert server.openai.completions.create(**options).choices[0].text != expected


def test_temperature_is_one_where_nothing_is_said(server):
    done = server.openai.completions.create(model="speller", prompt=PROMPT, seed=3)
    assert done.choices[0].text == text_alone(PROMPT, max_tokens=16, temperature=1.0, seed=3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(server, stream):
    text = text_alone(PROMPT, max_tokens=60)
    stop = text[17:20]
    done = server.openai.completions.create(
        model="speller", prompt=PROMPT, max_tokens=60, temperature=0, stop=[stop, "not there"], stream=stream
    )
    parts = [c.choices[0] for c in done] if stream else done.choices
    assert "".join(p.text for p in parts) == text[: text.index(stop)]
    assert parts[-1].finish_reason == "stop"
    server.wait_until_nothing_is_held()


@pytest.mark.parametrize("stream", [False, True])
def test_what_only_begins_like_a_stop_string_is_text(server, stream):
    text = text_alone(PROMPT, max_tokens=30)
    done = server.openai.completions.create(
        model="speller", prompt=PROMPT, max_tokens=30, temperature=0, stop=[text[-2:] + "STOP"], stream=stream
    )
    parts = [c.choices[0] for c in done] if stream else done.choices
    assert "".join(p.text for p in parts) == text and parts[-1].finish_reason == "length"


def test_stop_tokens_end_the_text_and_are_none_of_it(server):
    alone = answer_alone(tuple(PROMPT.encode()), Sampling(max_tokens=40)).output
    stop = alone[25]
    first = alone.index(stop)
    options = dict(model="speller", prompt=PROMPT, max_tokens=40, temperature=0)
    done = server.openai.completions.create(**options, extra_body={"stop_token_ids": [stop], "return_token_ids": True})
    choice = done.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.token_ids == alone[: first + 1] and choice.prompt_token_ids == list(PROMPT.encode())
    assert choice.text == byte_tokenizer().decode(alone[:first])
    assert done.usage.completion_tokens == first + 1


def test_the_models_own_stop_token_ends_the_text_unless_it_is_ignored(server):
    options = dict(model="speller", prompt=PROMPT, max_tokens=8, temperature=0, logit_bias={str(END): 100})
    stopped = server.openai.completions.create(**options)
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("", "stop")
    went_on = server.openai.completions.create(**options, extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert (went_on.choices[0].text, went_on.choices[0].finish_reason) == ("<end>" * 8, "length")


def test_echo_puts_the_prompt_first(server):
    options = dict(model="speller", prompt=PROMPT, max_tokens=5, temperature=0, echo=True)
    expected = PROMPT + text_alone(PROMPT, max_tokens=5)
    assert server.openai.completions.create(**options).choices[0].text == expected
    assert "".join(c.choices[0].text for c in server.openai.completions.create(**options, stream=True)) == expected


def test_logprobs_are_those_of_the_engine(server):
    alone = answer_alone(tuple(PROMPT.encode()), Sampling(max_tokens=10, logprobs=3))
    done = server.openai.completions.create(model="speller", prompt=PROMPT, max_tokens=10, temperature=0, logprobs=3)
    logprobs = done.choices[0].logprobs
    assert logprobs.token_logprobs == [d.logprob for d in alone.drawn]
    assert [max(best.values()) for best in logprobs.top_logprobs] == [d.top[0][1] for d in alone.drawn]
    assert logprobs.text_offset[0] == 0 and logprobs.text_offset == sorted(logprobs.text_offset)
    streamed = list(
        server.openai.completions.create(
            model="speller", prompt=PROMPT, max_tokens=10, temperature=0, logprobs=3, stream=True
        )
    )
    assert [v for c in streamed for v in c.choices[0].logprobs.token_logprobs] == logprobs.token_logprobs


CHAT = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hello é"}]
CHAT_PROMPT = "<system>be short<user>hello é<end>assistant:"


def chat_ids(prompt: str) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(prompt))


def test_a_chat_is_written_by_the_models_template(server):
    assert END in chat_ids(CHAT_PROMPT)
    alone = answer_alone(chat_ids(CHAT_PROMPT), Sampling(max_tokens=30)).output
    options = dict(model="speller", messages=CHAT, max_tokens=30, temperature=0)
    done = server.openai.chat.completions.create(**options)
    message = done.choices[0].message
    assert (message.role, message.content) == ("assistant", byte_tokenizer().decode(alone))
    assert done.choices[0].finish_reason == "length" and done.usage.prompt_tokens == len(chat_ids(CHAT_PROMPT))
    chunks = list(server.openai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == message.content
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-1].usage.completion_tokens == 30


def test_content_in_parts_and_the_developers_role(server):
    plain = server.openai.chat.completions.create(model="speller", messages=CHAT, max_tokens=10, temperature=0)
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo é"}]
    done = server.openai.chat.completions.create(
        model="speller",
        messages=[{"role": "developer", "content": "be short"}, {"role": "user", "content": parts}],
        max_completion_tokens=10,
        temperature=0,
    )
    assert done.choices[0].message.content == plain.choices[0].message.content


def test_the_templates_own_switches(server):
    prompt = CHAT_PROMPT.replace("<end>", "[loud]<end>")
    alone = answer_alone(chat_ids(prompt), Sampling(max_tokens=10)).output
    done = server.openai.chat.completions.create(
        model="speller",
        messages=CHAT,
        max_tokens=10,
        temperature=0,
        extra_body={"chat_template_kwargs": {"style": "loud"}, "return_token_ids": True},
    )
    assert done.choices[0].token_ids == alone and done.prompt_token_ids == list(chat_ids(prompt))


def test_a_chat_without_a_bound_goes_on_to_its_stop(server):
    stop = answer_alone(chat_ids(CHAT_PROMPT), Sampling(max_tokens=90)).output[80]
    done = server.openai.chat.completions.create(
        model="speller", messages=CHAT, temperature=0, extra_body={"stop_token_ids": [stop]}
    )
    assert done.choices[0].finish_reason == "stop"


def test_chat_logprobs(server):
    alone = answer_alone(chat_ids(CHAT_PROMPT), Sampling(max_tokens=6, logprobs=2))
    done = server.openai.chat.completions.create(
        model="speller", messages=CHAT, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2
    )
    content = done.choices[0].logprobs.content
    assert [c.logprob for c in content] == [d.logprob for d in alone.drawn]
    assert [[t.logprob for t in c.top_logprobs] for c in content] == [[v for _, v in d.top] for d in alone.drawn]
    for chosen, drawn in zip(content, alone.drawn, strict=True):
        assert chosen.bytes == ([drawn.token] if drawn.token < 128 else None)


def test_sixteen_streams_together_get_the_text_they_get_alone(server):
    prompts = [f"{i} is the number of this prompt " * (1 + i % 4) for i in range(16)]
    texts: dict[int, str] = {}

    def ask(i: int) -> None:
        stream = server.openai.completions.create(
            model="speller", prompt=prompts[i], max_tokens=30 + i, temperature=0.9, seed=i, stream=True
        )
        texts[i] = "".join(c.choices[0].text for c in stream)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert texts == {i: text_alone(prompts[i], max_tokens=30 + i, temperature=0.9, seed=i) for i in range(16)}
    server.wait_until_nothing_is_held()


def test_models_and_tokenize(server):
    assert [m.id for m in server.openai.models.list()] == ["speller"]
    assert server.openai.models.retrieve("speller").max_model_len == 199 * 64
    answer = server.http.post("/tokenize", json={"model": "speller", "prompt": "é!"}).json()
    assert answer == {"count": 3, "max_model_len": 199 * 64, "tokens": [0xC3, 0xA9, ord("!")]}
    answer = server.http.post("/tokenize", json={"model": "speller", "messages": CHAT}).json()
    assert answer["tokens"] == list(chat_ids(CHAT_PROMPT))
