"""A real Prometheus scrapes a live server whose KV memory is short: every query of boards, rules
and autoscalers has an answer.
"""

import math
import re
import time

import pytest
import yaml

import chart
import rendered
from boards import queries
from prom import Prometheus
from server import Server
from traffic import Traffic

WINDOW = "30s"
# SmolLM2-135M at 16 bit: about two of the six requests that traffic keeps there.
KV_MEMORY = 36 << 20
# Objectives and windows that a test can wait for; the fast and the slow alert then tell the same.
SHORT = {
    "interval": "1s", "fastLong": "30s", "fastShort": "15s", "slowLong": "30s", "slowShort": "15s",
    "errorWindow": "20s", "pending": "2s", "ttftSeconds": 0.1, "fastFactor": 14.4,
    "queueWindow": "10s", "queueFor": "3s", "hungWindow": "30s", "hungSeconds": 20,
}  # fmt: skip
# What a healthy server has none of.
QUIET = {
    "EbbScrapeGone",
    "EbbAbsent",
    "EbbEngineHung",
    "EbbErrors",
    "EbbPreempting",
    "EbbQueueFull",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Server, Prometheus and traffic, once the windows are full."""
    with Server(kv_memory=str(KV_MEMORY)) as server:
        labels = {"namespace": chart.NAMESPACE}
        rules = rendered.rules(SHORT)
        with Prometheus(
            tmp_path_factory.mktemp("prometheus"), {"ebb": ([server.http], labels)}, rules
        ) as prometheus:
            prometheus.wait("up == 1 and on () ebb:steps_total == 0", 30)
            # Before the first scrape nothing is there; without traffic, nothing is wrong.
            prometheus.wait("ALERTS", 30, present=False)
            with Traffic(server.address) as traffic:
                prometheus.wait("sum(increase(ebb:kv_shrunk_bytes_total[10s])) > 0", 120)
                prometheus.wait(
                    "sum(increase(vllm:e2e_request_latency_seconds_count[10s])) > 0", 120
                )
                time.sleep(8)
                yield server, prometheus, traffic


def problem(prometheus, expression):
    """What is wrong with a query, or nothing."""
    try:
        samples = prometheus.query(expression)
    except AssertionError as error:
        return str(error)
    if not samples:
        return "it is empty"
    return next(
        (f"{labels} is {value}" for labels, value in samples if not math.isfinite(value)), None
    )


def answered(prometheus, asked):
    """Fails unless every query of {place: expression} has an answer at one time, soon: what is
    rare, such as the end of a request on a slow machine, may be missing in one short window.
    """
    problems = {}
    for _ in range(10):
        found = {place: problem(prometheus, expression) for place, expression in asked.items()}
        problems = {place: text for place, text in found.items() if text}
        if not problems:
            return
        time.sleep(3)
    raise AssertionError(
        "\n".join(f"{place}: {text}\n    {asked[place]}" for place, text in problems.items())
    )


def test_every_query_of_every_panel_has_an_answer(world):
    _, prometheus, _ = world
    asked = dict(queries(WINDOW))
    assert len(asked) > 80
    answered(prometheus, asked)


def test_every_rule_is_healthy_and_records(world):
    _, prometheus, _ = world
    rules = prometheus.rules()
    assert [rule["name"] for rule in rules if rule["health"] != "ok" or rule.get("lastError")] == []
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    assert len(recorded) == 12
    answered(prometheus, {name: name for name in recorded})


def test_what_alerts_compare_is_there(world):
    """An alert that never fires because a metric is called otherwise would look just as healthy."""
    _, prometheus, _ = world
    names = set()
    for rule in prometheus.rules():
        names |= set(re.findall(r"\b(?:vllm|ebb|ebb_slo):\w+(?::\w+)?|\bup\b", rule["query"]))
    assert len(names) > 20
    answered(prometheus, {name: name for name in names})


@pytest.mark.parametrize("mode", ["progressive", "preempt-only"])
def test_what_autoscalers_ask_has_an_answer(world, mode):
    _, prometheus, _ = world
    asked = []
    keda = chart.only(
        chart.render({"autoscaling": {"kind": "keda"}, "kv": {"mode": mode}}), "ScaledObject"
    )
    asked += [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]]
    objects = chart.render({"autoscaling": {"kind": "hpa"}, "kv": {"mode": mode}})
    metrics = {
        metric["external"]["metric"]["name"]
        for metric in chart.only(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]
    }
    (adapter,) = (
        one
        for one in chart.kinds(objects)["ConfigMap"]
        if one["metadata"]["name"].endswith("-adapter-rules")
    )
    rules = yaml.safe_load(adapter["data"]["rules.yaml"])["externalRules"]
    assert {rule["name"]["as"] for rule in rules} == metrics
    for rule in rules:
        asked += [rule["seriesQuery"], rule["metricsQuery"]]
    for expression in asked:
        assert expression.count("{") == expression.count("}") > 0
    answered(prometheus, {expression: expression for expression in asked})
    for trigger in keda["spec"]["triggers"]:
        ((_, value),) = prometheus.query(trigger["metadata"]["query"])
        assert value >= 0 and (trigger["name"] == "queue-depth" or value <= 1)


def test_pressure_is_seen_by_the_boards(world):
    _, prometheus, _ = world
    ((_, stored),) = prometheus.query('ebb:kv_bits{of="stored"}')
    assert 2 < stored < 16
    assert prometheus.query("ebb:precision_spent_stored:ratio > 0.02")
    assert prometheus.query("max_over_time(ebb:kv_shrinkable_bytes[1m]) > 0"), (
        "nothing could shrink, and yet it did"
    )
    assert not prometheus.query(
        'ebb:kv_shrinkable_bytes > ignoring (state) ebb:kv_bytes{state="live"}'
    )
    low, high = (
        prometheus.query(f'ebb:kv_watermark_bytes{{mark="{mark}"}}')[0][1]
        for mark in ("low", "high")
    )
    assert 0 < low < high < KV_MEMORY


def test_an_alert_fires_and_ends(world):
    """Last: it ends the traffic. With half of the first tokens later than 0.1 s the budget burns;
    then traffic is light.
    """
    server, prometheus, traffic = world
    firing = 'ALERTS{alertstate="firing",alertname="EbbTtftBudgetBurningFast"}'
    prometheus.wait(firing, 60)
    fired = {labels["alertname"] for labels, _ in prometheus.query('ALERTS{alertstate="firing"}')}
    assert fired & QUIET == set(), fired
    traffic.stopping.set()
    server.idle(60)
    with Traffic(server.address, clients=1, prompt=257, answer=2):
        prometheus.wait(firing, 90, present=False)
    assert all(
        str(code) in ("StatusCode.OK", "StatusCode.CANCELLED") for code, _ in traffic.results
    )
