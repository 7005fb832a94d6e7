"""A check as JUnit XML, one test case per figure."""

from xml.etree import ElementTree

from day0.check.compare import Comparison, Report


def junit_xml(report: Report) -> str:
    """The report as a JUnit test suite. Undecided figures are errors: nothing passes that was not measured."""
    cases = report.comparisons or (Comparison("baseline", "", "", None, report.verdict, report.detail),)
    suite = ElementTree.Element("testsuite", name=f"day0 check {report.model}", tests=str(len(cases)))
    suite.set("failures", str(sum(c.verdict == "does not hold" for c in cases)))
    suite.set("errors", str(sum(c.verdict == "inconclusive" for c in cases)))
    for comparison in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=report.model, name=comparison.name)
        if comparison.verdict != "holds":
            tag = "failure" if comparison.verdict == "does not hold" else "error"
            message = comparison.detail or f"{comparison.now}, in the baseline {comparison.baseline}"
            ElementTree.SubElement(case, tag, message=message, type=comparison.verdict)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
