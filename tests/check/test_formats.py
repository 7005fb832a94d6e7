from xml.etree import ElementTree

from day0.check.compare import Comparison, Report
from day0.check.junit import junit_xml
from day0.check.markdown import markdown

GOOD = Comparison("exactness/y", 1e-13, 1.5e-13, 2e-13, "holds")
BAD = Comparison('logits <&> "x"|y', 1e-13, 9e-13, 2e-13, "does not hold", "9e-13 is above 2e-13")
LOST = Comparison("gone", 1e-13, "not measured", None, "inconclusive")


def report(*comparisons, verdict="does not hold", conditions=()):
    return Report(verdict, "in words", comparisons, "toy", conditions)


def test_junit_counts_and_marks_every_figure():
    suite = ElementTree.fromstring(junit_xml(report(GOOD, BAD, LOST))).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    good, bad, lost = suite.findall("testcase")
    assert len(good) == 0 and good.get("name") == "exactness/y"
    assert bad.get("name") == BAD.name and bad.find("failure").get("message") == "9e-13 is above 2e-13"
    assert lost.find("error").get("message") == "not measured, in the baseline 1e-13"


def test_junit_of_an_undecided_check_does_not_pass():
    """A suite without cases would be green in most CI systems."""
    suite = ElementTree.fromstring(junit_xml(report(verdict="inconclusive"))).find("testsuite")
    assert suite.get("errors") == "1" and suite.find("testcase/error").get("message") == "in words"


def test_markdown_shows_what_fails():
    text = markdown(report(GOOD, BAD, LOST, conditions=("random weights",)))
    assert text.startswith("## day0 check: toy: does not hold\n\nin words\n")
    assert "Conditions: random weights" in text
    assert "| gone | 1e-13 | not measured | - | inconclusive |" in text
    assert '| logits <&> "x"\\|y | 1e-13 | 9e-13 | 2e-13 | does not hold |' in text
    assert "exactness/y" not in text


def test_markdown_of_a_check_that_holds_shows_the_figures_nearest_their_limit():
    many = [Comparison(f"f{i}", 1.0, i / 100, 1.0, "holds") for i in range(20)]
    text = markdown(report(*many, verdict="holds"))
    assert text.count("| holds |") == 10 and "| f19 |" in text and "| f9 |" not in text
