"""Text that comes token by token is the text of all tokens, and a stop string ends it wherever the pieces are cut."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from day0.demo import model_path
from day0.serve.detokenize import Detokenizer, StopStrings

DEMO = Tokenizer.from_file(str(Path(model_path()) / "tokenizer.json"))
# Tokens of single bytes beside words, as sentencepiece writes them.
_WORDS = ["▁one", "▁two", "three", "▁", "é"]
FALLBACK = Tokenizer(
    models.BPE(
        vocab={t: i for i, t in enumerate([*(f"<0x{b:02X}>" for b in range(256)), *_WORDS])},
        merges=[],
        byte_fallback=True,
    )
)
FALLBACK.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*(stream.push(i) for i in ids), stream.finish()]


def fallback_ids(text: str) -> list[int]:
    """The bytes of a text as tokens."""
    return list(text.encode())


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_comes_back_without_half_a_character(text):
    for tokenizer, ids in ((DEMO, DEMO.encode(text, add_special_tokens=False).ids), (FALLBACK, fallback_ids(text))):
        cut = pieces(tokenizer, ids)
        assert "".join(cut) == tokenizer.decode(ids)
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in cut)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, DEMO.get_vocab_size() + 5), max_size=40))
def test_any_tokens_give_the_text_that_they_give_together(ids):
    assert "".join(pieces(DEMO, ids)) == DEMO.decode(ids)


def test_a_character_comes_with_its_last_byte():
    assert pieces(FALLBACK, fallback_ids("a€😀b")) == ["a", "", "", "€", "", "", "", "😀", "b", ""]


def test_good_bytes_before_a_bad_one_stay_what_they_were():
    ids = [*fallback_ids("é"), 0xE2, FALLBACK.token_to_id("three"), 0xE2]
    assert pieces(FALLBACK, ids) == ["", "é", "", "\ufffdthree", "", "\ufffd"]


def test_a_word_keeps_the_space_before_it():
    words = [FALLBACK.token_to_id(w) for w in ("▁one", "▁two", "three", "▁one")]
    assert pieces(FALLBACK, words) == ["one", " two", "three", " one", ""]


def test_tokens_that_never_become_text_are_not_held_for_ever():
    cut = pieces(DEMO, [DEMO.token_to_id("â")] * 300)  # a first byte of three, again and again
    assert max(len(piece) for piece in cut) <= 64


def test_special_tokens_are_text_where_they_are_asked_for():
    end = DEMO.token_to_id("<|endoftext|>")
    ids = [*DEMO.encode("a b").ids, end, *DEMO.encode("c").ids]
    assert "".join(pieces(DEMO, ids)) == "a bc"
    stream = Detokenizer(DEMO, skip_special_tokens=False)
    assert "".join([*(stream.push(i) for i in ids), stream.finish()]) == "a b<|endoftext|>c"


TEXTS = ["one STOP two", "one STO", "STOP", "SSTOP", "aabaabaac", "xabcdef", "no", "é€STOP", "STOSTOP rest STOP"]
STOPS = [["STOP"], ["STOP", "TO"], ["aabaac"], ["abcdef", "bcd"], ["€S"], ["b", "aab"], ["STOP", "STOP two"]]


@pytest.mark.parametrize("stops", STOPS, ids=" ".join)
@pytest.mark.parametrize("text", TEXTS)
def test_a_stop_string_ends_the_text_at_every_cut(text, stops):
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    expected = text[: min(ends)[1]] if ends else text
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, len(text)), n) for n in range(3))
    for places in (*cuts, tuple(range(1, len(text)))):
        stop = StopStrings(stops)
        parts = [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]
        out = ""
        for part in parts:
            out += stop.push(part)
            assert expected.startswith(out), "what went out would have to be taken back"
        assert out + stop.finish() == expected, parts
        assert (stop.found is not None) == bool(ends)


def test_nothing_is_held_that_no_stop_string_begins_with():
    stop = StopStrings(["STOP"])
    assert [stop.push(p) for p in ("a", "bST", "x", "S", "S")] == ["a", "b", "STx", "", "S"]
    assert stop.finish() == "S"
    assert StopStrings([]).push("all of it") == "all of it"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
