import json
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from day0.errors import Day0Error
from day0.repo import ModelRepo, chat_template
from day0.repo.chat_template import render_template
from tests.repo.safetensors_files import write_config

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_config(tmp_path / "toy", {"model_type": "toy", "eos_token_id": 2})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: index + 3 for index, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "<|user|>", "<|assistant|>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "<|user|>"}, "add_bos_token": True, "pad_token": None})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_text_survives_a_round_trip(folder: Path) -> None:
    tokenizer = ModelRepo.open(folder).tokenizer
    text = "naïve – ∑ 1\n\ttwo"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.vocab_size == 256 + 3
    special = tokenizer.encode("<|user|>x")
    assert len(special) == 2
    assert tokenizer.decode(special) == "x"
    assert tokenizer.decode(special, skip_special_tokens=False) == "<|user|>x"
    assert tokenizer.decode([special[1], 10_000]) == "x"


def test_special_tokens_are_texts(folder: Path) -> None:
    assert ModelRepo.open(folder).tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "<|user|>"}


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 1, 7]}, {"eos_token_id": 2}, (7, 1)),
        ({"eos_token_id": 0}, {"eos_token_id": 2}, (0,)),
        ({"eos_token_id": None}, {"eos_token_id": 2}, (2,)),
        ({}, {"text_config": {"eos_token_id": [4]}}, (4,)),
        (None, {"eos_token_id": [5, 6]}, (5, 6)),
    ],
)
def test_stop_ids(folder: Path, generation: object, config: dict, expected: tuple[int, ...]) -> None:
    write_config(folder, config)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert ModelRepo.open(folder).tokenizer.eos_ids == expected


def test_stop_id_of_the_tokenizer_where_no_config_names_one(folder: Path) -> None:
    write_config(folder, {})
    tokenizer = ModelRepo.open(folder).tokenizer
    assert tokenizer.eos_ids == tuple(tokenizer.encode("<|user|>"))


@pytest.mark.parametrize("value", ["2", [], [1, "2"], -1, True, 1.0])
def test_an_invalid_stop_id(folder: Path, value: object) -> None:
    write_config(folder, {"eos_token_id": value})
    with pytest.raises(Day0Error, match="eos_token_id is"):
        _ = ModelRepo.open(folder).tokenizer


def test_missing_and_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(Day0Error, match="tokenizer.json does not load"):
        _ = ModelRepo.open(folder).tokenizer
    (folder / "tokenizer.json").unlink()
    with pytest.raises(Day0Error, match="has no tokenizer.json"):
        _ = ModelRepo.open(folder).tokenizer


def test_a_chat_is_rendered_by_the_template(folder: Path) -> None:
    tokenizer = ModelRepo.open(folder).tokenizer
    messages = [{"role": "user", "content": "a < b"}]
    assert tokenizer.render_chat(messages) == "<s><|user|>a < b<|assistant|>"
    assert tokenizer.render_chat(messages, add_generation_prompt=False) == "<s><|user|>a < b"
    with pytest.raises(Day0Error, match="template variable messages is set by the call"):
        tokenizer.render_chat(messages, variables={"messages": []})


def test_no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(Day0Error, match="no chat template"):
        ModelRepo.open(folder).tokenizer.render_chat([])


def test_renders_as_transformers_does(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    template = """{%- for m in messages %}
    {%- if m.role == "system" %}{% continue %}{% endif %}
  [{{ loop.index0 }}] {{ m.role | upper }}: {{ m | tojson }} {{ {"é": 1} | tojson(indent=2) }}
  {% generation %}{{ m.content | trim }}{% endgeneration %}
{% endfor %}
{%- set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}{% endfor %}
{{ ns.count }} {{ tools | length if tools else "no tools" }} {{ enable_thinking }} {{ bos_token }}"""
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": " ö <b> "}]
    tools = [{"name": "f", "parameters": {}}]
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = ModelRepo.open(folder).tokenizer
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>")
    for given in (None, tools):
        expected = theirs.apply_chat_template(
            messages, tools=given, chat_template=template, tokenize=False, add_generation_prompt=True, enable_thinking=1
        )
        assert tokenizer.render_chat(messages, tools=given, variables={"enable_thinking": 1}) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ messages.nope.more }}", "UndefinedError"),
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 'a' * 2000000 }}", "repeats a value too many times"),
        ("{{ 2000000 * 'a' }}", "repeats a value too many times"),
        ("{{ [0] * 2000000 }}", "repeats a value too many times"),
        ("{{ 10 ** 10 ** 10 }}", "a power too large"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError"),
        ("x" * 1_000_001, "more than 1000000"),
    ],
)
def test_what_a_template_may_not_do(source: str, message: str) -> None:
    with pytest.raises(Day0Error, match=message) as caught:
        render_template(source, {"messages": []})
    assert caught.value.message.startswith("the chat template ")


def test_a_silent_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_RENDER_S", 0.2)
    before = sys.gettrace()
    start = time.monotonic()
    sys.settrace(lambda frame, event, argument: None)
    own = sys.gettrace()
    with pytest.raises(Day0Error, match="does not end within 0.2 s"):
        render_template("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", {})
    after = sys.gettrace()
    sys.settrace(before)
    assert after is own
    assert time.monotonic() - start < 5


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 100)
    assert len(render_template("{% for i in range(100) %}x{% endfor %}", {})) == 100
    with pytest.raises(Day0Error, match="renders more than 100 characters"):
        render_template("{% for i in range(101) %}x{% endfor %}", {})
