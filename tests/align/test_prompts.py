"""Prompts fit the model's positions, and are long enough for every check that runs them."""

import pytest

from day0.align.invariance import check_invariance
from day0.align.prompts import LEAST, LENGTHS, given_prompts, random_prompts
from day0.align.self_check import check_reference
from day0.demo import model_path
from day0.errors import Day0Error
from day0.repo.model_repo import ModelRepo


def test_lengths_leave_room():
    assert [len(p.ids) for p in random_prompts(50, ())] == list(LENGTHS)
    assert [len(p.ids) for p in random_prompts(50, (), max_positions=80, room=20)] == [37, 60, 60, 60]


def test_too_few_positions_are_refused_by_option():
    with pytest.raises(Day0Error, match=f"leave {LEAST - 1} for a prompt") as caught:
        random_prompts(50, (), max_positions=LEAST + 63, room=64)
    assert "--greedy-tokens" in caught.value.hint


def test_the_shortest_prompts_run_in_every_check(exact_package, exact_reference):
    ids = random_prompts(50, (), max_positions=LEAST)[0].ids
    assert len(ids) == LEAST
    assert all(cell.verdict == "holds" for cell in check_invariance(exact_package, ids)[0])
    assert all(check.holds for check in check_reference(exact_reference, ids))


def test_a_users_texts_are_prompts_whole_or_refused():
    demo = ModelRepo.open(model_path())
    count = len(demo.tokenizer.encode("The river had risen"))
    given = given_prompts(demo, ["The river had risen", "and"], max_positions=count + 4, room=4)
    assert [(p.name, p.note) for p in given] == [("text 1", "text"), ("text 2", "text")]
    assert [len(p.ids) for p in given] == [count, 1]
    with pytest.raises(Day0Error, match=f"text 2 has {count} tokens: with 5 more it is too long") as told:
        given_prompts(demo, ["and", "The river had risen"], max_positions=count + 4, room=5)
    assert "--greedy-tokens" in told.value.hint
    with pytest.raises(Day0Error, match="'' has no tokens"):
        given_prompts(demo, [""])
