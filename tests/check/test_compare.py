import pytest

from day0.artifacts.base import write_atomically
from day0.check.baseline import Baseline, Key, store
from day0.check.compare import compare, worst_verdict
from day0.errors import Day0Error
from tests.check.alignments import PRODUCED_BY, alignment, cell, row


@pytest.fixture
def stored(tmp_path):
    """stored(*alignments): the baseline file with all of them in it."""

    def make(*alignments):
        path = tmp_path / "base.json"
        for made in alignments:
            store(made, path)
        return Baseline.read(tmp_path, "base.json")

    return make


def verdicts(report):
    return {c.name: c.verdict for c in report.comparisons}


ROW = "exactness/propagated/attention.y"


def test_the_same_figures_hold(stored):
    now = alignment(row(1e-13), cells=(cell(1e-12),))
    report = compare(now, stored(now))
    assert report.verdict == "holds" and set(verdicts(report).values()) == {"holds"}
    assert report.detail == "1 gate, 3 figures, 1 continuation"


@pytest.mark.parametrize(("error", "verdict"), [(2.0e-13, "holds"), (2.1e-13, "does not hold"), (0.0, "holds")])
def test_an_error_may_double_and_no_more(stored, error, verdict):
    report = compare(alignment(row(error)), stored(alignment(row(1e-13))))
    assert report.verdict == verdicts(report)[ROW] == verdict


@pytest.mark.parametrize(("error", "verdict"), [(8 * 2.0**-53, "holds"), (9 * 2.0**-53, "does not hold")])
def test_rounding_noise_is_no_regression(stored, error, verdict):
    assert compare(alignment(row(error)), stored(alignment(row(1e-20)))).verdict == verdict


def test_the_gates_bound_caps_what_doubling_allows(stored):
    base = stored(alignment(row(0.8e-10)))
    assert compare(alignment(row(0.99e-10)), base).verdict == "holds"
    report = compare(alignment(row(1.01e-10)), base)
    assert report.verdict == "does not hold"
    assert next(c for c in report.comparisons if c.name == ROW).limit == 1e-10


def test_a_gate_that_fails_fails_the_check_whatever_the_baseline(stored):
    base = stored(alignment(row(1e-13)))
    report = compare(alignment(row(1e-13), gate="does not hold", holds="does not hold"), base)
    assert report.verdict == "does not hold" and "gate exactness" in report.detail
    assert compare(alignment(row(1e-13), gate="inconclusive", holds="inconclusive"), base).verdict == "inconclusive"


def test_greedy_must_stay_equal(stored):
    report = compare(alignment(equal=False), stored(alignment(equal=True)))
    assert report.verdict == verdicts(report)["greedy/code"] == "does not hold"
    assert compare(alignment(equal=False), stored(alignment(equal=False), alignment(equal=False))).verdict == "holds"


def test_fewer_tokens_prove_less(stored):
    assert compare(alignment(tokens=32), stored(alignment(tokens=64))).verdict == "inconclusive"
    assert compare(alignment(tokens=128), stored(alignment(tokens=64))).verdict == "holds"


def test_a_figure_that_is_no_longer_measured_is_undecided(stored):
    report = compare(alignment(), stored(alignment(row(1e-13))))
    assert report.verdict == verdicts(report)[ROW] == "inconclusive"


def test_a_new_figure_is_no_regression(stored):
    assert compare(alignment(row(1e-13)), stored(alignment())).verdict == "holds"


def test_a_stale_alignment_decides_nothing(stored):
    now = alignment(row(1e-13))
    report = compare(now, stored(now), stale="package/model.py changed")
    assert report.verdict == "inconclusive" and "package/model.py changed" in report.detail


@pytest.mark.parametrize(
    "change",
    [{"model_hash": "b" * 64}, {"reference_hash": "s" * 64}, {"device": "h200"}, {"flags": {"layers": 4}}],
)
def test_a_baseline_of_something_else_decides_nothing(stored, change):
    report = compare(alignment(**change), stored(alignment()))
    assert report.verdict == "inconclusive" and f"{next(iter(change))} differ" in report.detail


def test_changed_kernels_are_what_a_check_judges(stored):
    report = compare(alignment(row(9e-13), kernel_set="n" * 64), stored(alignment(row(1e-13))))
    assert report.verdict == "does not hold" and "the kernels changed since the baseline" in report.detail


def test_the_entry_of_the_same_kernels_comes_first_else_the_newest(stored):
    base = stored(alignment(row(1e-13), kernel_set="1"), alignment(row(2e-13), kernel_set="2"), alignment(row(3e-13)))

    def chosen(kernel_set):
        return base.entry_for(Key.of(PRODUCED_BY.model_copy(update={"kernel_set": kernel_set}))).figures[ROW].error

    assert (chosen("1"), chosen("2"), chosen("other")) == (1e-13, 2e-13, 3e-13)


def test_storing_again_replaces_the_entry_of_that_key(stored):
    base = stored(alignment(row(1e-13)), alignment(device="h200"), alignment(row(5e-13)))
    assert [e.key.device for e in base.entries] == ["h200", "cpu"]
    assert base.entries[-1].figures[ROW].error == 5e-13


@pytest.mark.parametrize("holds", ["does not hold", "inconclusive"])
def test_what_does_not_hold_makes_no_baseline(tmp_path, holds):
    with pytest.raises(Day0Error, match="makes no baseline"):
        store(alignment(holds=holds), tmp_path / "base.json")
    assert not list(tmp_path.iterdir())


def test_a_damaged_baseline_is_never_overwritten(tmp_path):
    path = tmp_path / "base.json"
    write_atomically(path, b"{")
    with pytest.raises(Day0Error, match="is not valid"):
        store(alignment(), path)
    assert path.read_bytes() == b"{"


def test_verdicts_add_up():
    assert worst_verdict(["holds", "inconclusive", "does not hold"]) == "does not hold"
    assert worst_verdict(["holds", "inconclusive"]) == "inconclusive"
    assert worst_verdict([]) == "holds"
