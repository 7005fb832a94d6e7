"""Which targets are measured again, and what of it is recorded."""

import pytest

from tests.evidence import evidence
from tests.evidence.refresh import refresh
from tests.evidence.targets import Target


@pytest.fixture
def measure_again(tmp_path, monkeypatch):
    """measure_again(measure=..., only=..., everything=...): the names measured, over the targets a and b."""
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path / "evidence")
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)

    def run(measure=lambda target: {"rate": 1.0}, only=(), everything=False, names=("a", "b")):
        asked = []

        def noted(target):
            asked.append(target.name)
            return measure(target)

        refresh(
            "speed",
            [Target(name, (f"{name}.txt",), ()) for name in names],
            command="make speed",
            inputs=lambda target: target.sources,
            measure=noted,
            summarise=lambda parts: {"count": len(parts)},
            only=list(only),
            everything=everything,
        )
        return asked

    return run


def test_only_what_is_stale_is_measured(measure_again, tmp_path):
    assert measure_again() == ["a", "b"]
    assert measure_again() == []
    (tmp_path / "b.txt").write_text("other")
    assert measure_again() == ["b"]
    assert evidence.stale_parts(evidence.read("speed")) == []


def test_named_and_all_targets_are_measured_though_fresh(measure_again):
    measure_again()
    assert measure_again(only=["a"]) == ["a"]
    assert measure_again(everything=True) == ["a", "b"]


def test_what_changed_while_it_was_measured_is_not_recorded(measure_again, tmp_path):
    def measure(target):
        (tmp_path / "b.txt").write_text("other")
        return {"rate": 1.0}

    assert measure_again(measure) == ["a", "b"]
    assert evidence.read("speed")["summary"] == {"count": 2}
    (tmp_path / "b.txt").write_text("b")
    assert measure_again(measure) == ["b"]
    assert measure_again() == []


def test_a_target_that_is_gone_is_dropped(measure_again):
    measure_again()
    assert measure_again(names=("a",)) == []
    assert list(evidence.read("speed")["parts"]) == ["a"]
    assert evidence.read("speed")["summary"] == {"count": 1}


def test_what_was_measured_before_a_failure_is_kept(measure_again):
    def measure(target):
        if target.name == "b":
            raise RuntimeError("its tests do not pass")
        return {"rate": 1.0}

    with pytest.raises(RuntimeError):
        measure_again(measure)
    assert measure_again() == ["b"]
