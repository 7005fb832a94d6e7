"""day0 kernels test and bench: verdicts and exit codes, here under Triton's interpreter."""

import pytest
import torch

from day0.kernels.common import conformance
from day0.kernels.common.conformance import Finding
from tests.cli.run_day0 import day0

ONE = ("kernels", "test", "norm", "--match", "one plus", "--json")


@pytest.fixture(autouse=True)
def findings(monkeypatch):
    """What the check of a case finds."""
    found = [Finding("c", 0, "output 0", 1e-7, 1e-7, 2e-7), Finding("c", 1, "output 0", 1.5e-7, 1e-7, 2e-7)]
    monkeypatch.setattr(conformance, "check", lambda *case, **how: list(found))
    return found


def test_the_worst_of_a_case_is_shown(capsys, findings):
    ran = day0(capsys, *ONE, "--dtype", "float32")
    assert ran.code == 0 and ran.json["verdict"] == "holds" and ran.json["cases"]
    assert {(c["worst"], c["error"], c["verdict"]) for c in ran.json["cases"]} == {
        ("output 0, step 1", 1.5e-7, "holds")
    }


@pytest.mark.parametrize("error", [3e-7, float("nan")])
def test_one_failing_result_does_not_hold(capsys, findings, error):
    findings[0] = Finding("c", 0, "state", error, 1e-7, 2e-7)
    ran = day0(capsys, "kernels", "test", "norm", "--match", "one plus", "--dtype", "float32")
    assert ran.code == 1 and "state, step 0" in ran.out and "does not hold" in ran.out


def test_kernels_that_are_no_operator_are_tested_by_their_own_cases(capsys):
    ran = day0(capsys, "kernels", "test", "quantize", "--match", "plain", "--dtype", "float32", "--json")
    (row,) = ran.json["cases"]
    assert ran.code == 0 and (row["kind"], row["case"], row["error"], row["verdict"]) == (
        "quantize",
        "plain",
        0,
        "holds",
    )


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("test", "norm", "--dtype", "float32", "--match", "no such case"), "nothing to run has 'no such case'"),
        (("test", "nurm", "--dtype", "float32"), "no kernels of nurm"),
        (("test", "norm"), "interpreted kernels cannot multiply bfloat16"),
        (("test", "norm", "--dtype", "int8"), "bfloat16, float16 or float32"),
        (("bench", "norm"), "no CUDA device"),
    ],
)
def test_what_cannot_run_is_an_error(capsys, monkeypatch, arguments, what):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = day0(capsys, "kernels", *arguments)
    assert ran.code == 2 and what in ran.err and not ran.out
