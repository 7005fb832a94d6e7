"""docs/monitoring: it names only what the server counts, and its alerts fire where they should."""

import json
import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from day0.serve import health
from day0.serve.health import KnownAnswer
from day0.serve.metrics import Metrics
from tests.serve.running import running, wait_for
from tests.serve.spelling import KNOWN, KNOWN_PROMPT, SpellingModel, spelling_engine, spelling_served

KIT = Path(__file__).parents[2] / "docs" / "monitoring"
RULES = yaml.safe_load((KIT / "alerts.yml").read_text())
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
DASHBOARD = json.loads((KIT / "dashboard.json").read_text())
TESTS = yaml.safe_load((KIT / "alerts_test.yml").read_text())
# What Prometheus itself adds to everything that it scrapes.
OF_TARGETS = {"job", "instance"}

# Grafana fills these in; a parser of PromQL needs what they stand for.
FILLED = {"$__rate_interval": "1m", "$instance": ".*"}


def counted() -> dict[str, set[str]]:
    """Every series that /metrics has, by name, with its labels."""
    metrics = Metrics(spelling_engine())
    metrics.responses.labels("/v1/completions", "200").inc()
    metrics.finished.labels("stop").inc()
    found: dict[str, set[str]] = {"up": set()}
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


COUNTED = counted()


def parsed(expression: str):
    for name, value in FILLED.items():
        expression = expression.replace(name, value)
    return promql_parser.parse(expression)


def walk(node):
    """A parsed expression and all below it."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (below := getattr(node, name, None)) is not None:
            yield from walk(below)
    for below in getattr(node, "args", None) or ():
        yield from walk(below)


def selectors(expression: str):
    found = [node for node in walk(parsed(expression)) if isinstance(node, promql_parser.VectorSelector)]
    assert found, expression
    return found


def of_dashboard():
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def faults(expression: str) -> list[str]:
    """What is named there that no server has."""
    found = []
    for selector in selectors(expression):
        if selector.name not in COUNTED:
            found.append(selector.name)
            continue
        labels = {matcher.name for matcher in selector.matchers.matchers}
        found += sorted(labels - COUNTED[selector.name] - OF_TARGETS)
    for node in walk(parsed(expression)):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            inside = {label for selector in selectors(str(node.expr)) for label in COUNTED.get(selector.name, ())}
            found += sorted(set(node.modifier.labels) - inside - OF_TARGETS)
    return found


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in ALERTS.values()), *of_dashboard()])
def test_an_expression_names_what_the_server_counts(expression):
    assert faults(expression) == []


def test_what_no_server_counts_is_found():
    assert faults("day0_responses") == ["day0_responses"]  # its series ends in _total
    assert faults("sum(rate(day0_responses_total{state='500'}[5m])) / day0_nothing") == ["state", "day0_nothing"]
    assert faults("sum by (path) (day0_running)") == ["path"]


def test_the_dashboard_shows_everything_that_is_counted():
    shown = {selector.name for expression in of_dashboard() for selector in selectors(expression)}
    # Of a histogram its buckets, which say what its sum and count do.
    assert {name for name in COUNTED if not name.endswith(("_count", "_sum", "_created"))} - {"up"} == shown


def test_the_scrape_config_finds_rules_and_metrics():
    config = yaml.safe_load((KIT / "prometheus.yml").read_text())
    assert all((KIT / name).is_file() for name in config["rule_files"])
    (job,) = config["scrape_configs"]
    text = (KIT / "alerts.yml").read_text() + (KIT / "dashboard.json").read_text().replace('\\"', '"')
    assert f'job="{job["job_name"]}"' in text
    with running(spelling_served()) as server:
        answer = server.http.get(job["metrics_path"])
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/plain")


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not():
    wanted = {(name, fires) for name in ALERTS for fires in (True, False)}
    made = {
        (case["alertname"], bool(case["exp_alerts"])) for test in TESTS["tests"] for case in test["alert_rule_test"]
    }
    assert made == wanted
    for test in TESTS["tests"]:
        for series in test["input_series"]:
            assert faults(series["series"]) == []


if shutil.which("promtool"):  # where it is installed, Prometheus itself is asked

    @pytest.mark.parametrize(
        "command", ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"]
    )
    def test_promtool_agrees(command):
        ran = subprocess.run(["promtool", *command.split()], cwd=KIT, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def healthy(server) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("day0_healthy ")))


def test_scraping_alone_tells_when_the_model_goes_wrong_and_right_again(monkeypatch):
    monkeypatch.setattr(health, "_FRESH_S", 0.0)
    model = SpellingModel()
    with running(spelling_served(spelling_engine(model))) as server:
        assert healthy(server) == 1
        model._counting.wild = False
        wait_for(lambda: healthy(server) == 0)
        model._counting.wild = True
        wait_for(lambda: healthy(server) == 1)


def test_a_wrong_answer_and_a_dead_engine_are_not_healthy():
    wrong = KnownAnswer(KNOWN_PROMPT, (*KNOWN.tokens[:-1], 1))
    with running(spelling_served(known=wrong)) as server:
        assert healthy(server) == 0
    with running(spelling_served()) as server:
        assert healthy(server) == 1
        server.service.worker.stop("for the test")
        server.service.worker.join(10)
        assert healthy(server) == 0
