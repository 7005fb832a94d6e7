"""day0 kernels test and bench: verdicts and exit codes, here under Triton's interpreter."""

import pytest
import torch

from day0.kernels import registry
from day0.kernels.common import conformance, triton_bench
from day0.kernels.common.conformance import Finding
from day0.kernels.common.triton_bench import Bench, Ceilings, Deviation, Floor, Prepared
from tests.cli.run_day0 import day0

ONE = ("kernels", "test", "norm", "--match", "one plus", "--json")


@pytest.fixture(autouse=True)
def findings(monkeypatch):
    """What the check of a case finds."""
    found = [Finding("c", 0, "output 0", 1e-7, 1e-7, 2e-7), Finding("c", 1, "output 0", 1.5e-7, 1e-7, 2e-7)]
    monkeypatch.setattr(conformance, "check", lambda *case, **how: list(found))
    return found


@pytest.fixture
def benches(monkeypatch):
    """A card without a card: what each bench of norm finds, by its shape. A run takes 4 us, a peer's 2."""
    found = {"right": Deviation(0.003, 0.004), "counted": Deviation(0.0, 0.0)}

    def declared(folder, prefix, name):
        assert (folder, prefix, name) == ("norm", "triton_bench", "BENCHES")
        return [
            Bench("norm", shape, lambda d=d: Prepared(1, lambda i: 4.0, Floor(2.0), lambda: d, {"p": lambda i: 2.0}))
            for shape, d in found.items()
        ]

    monkeypatch.setattr(registry, "declared", declared)
    monkeypatch.setattr(triton_bench, "measure_ceilings", lambda: Ceilings(1e6, 1e6, 1e6))
    monkeypatch.setattr(triton_bench, "time_us", lambda run, sets: (run(0), "graph"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no card")
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
    ran = day0(capsys, *ONE, "--dtype", "float32")
    assert ran.code == 1 and ran.json["verdict"] == "does not hold" and ran.json["cases"][0]["error"] >= 3e-7


def test_a_bench_shows_errors_beside_their_bounds(capsys, benches):
    ran = day0(capsys, "kernels", "bench", "norm", "--json")
    assert ran.code == 0 and ran.json["verdict"] == "holds"
    assert [(row["shape"], row["error"], row["bound"], row["verdict"]) for row in ran.json["rows"]] == [
        ("right", 0.003, 0.004, "holds"),
        ("counted", 0.0, 0.0, "holds"),
    ]
    assert [(row["us"], row["floor_us"], row["peer_us"]) for row in ran.json["rows"]] == [(4.0, 2.0, 2.0)] * 2
    ran = day0(capsys, "kernels", "bench", "norm")
    (header,) = [line.split() for line in ran.out.splitlines() if "operator" in line]
    assert ran.code == 0 and header[header.index("error") + 1] == "bound"


@pytest.mark.parametrize(
    ("deviation", "said"),
    [
        (Deviation(0.0041, 0.004), "0.0041, at most 0.004"),
        (Deviation(1.0, 0.0), "1, at most 0"),
        (Deviation(float("nan"), 0.004), "nan, at most 0.004"),
        (Deviation(0.003, float("nan")), "0.003, at most nan"),
    ],
)
def test_a_bench_over_its_bound_is_an_error(capsys, benches, deviation, said):
    benches["wrong"] = deviation
    ran = day0(capsys, "kernels", "bench", "norm", "--json")
    errors = [line for line in ran.err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert ran.code == 1 and errors == ran.err.splitlines()[-2:]
    assert errors[0] == f"error: over the bound of its error: norm, wrong ({said})"
    assert ran.json["verdict"] == "does not hold"
    assert [row["verdict"] for row in ran.json["rows"]] == ["holds", "holds", "does not hold"]
    ran = day0(capsys, "kernels", "bench", "norm")
    assert ran.code == 1 and "wrong" in ran.out and said in ran.err


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
