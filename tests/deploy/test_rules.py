"""Recording rules and alerts, before anything is scraped."""

import re
import subprocess

import pytest

import chart
import rendered
import tools

RUNBOOKS = tools.ROOT / "deploy" / "runbooks"


def promtool(*arguments):
    done = subprocess.run(
        [tools.prometheus("promtool"), *arguments], capture_output=True, text=True, cwd=tools.ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts():
    return [
        rule for group in rendered.rules()["groups"] for rule in group["rules"] if "alert" in rule
    ]


def test_the_committed_rules_are_the_charts():
    assert rendered.RULES.read_text() == rendered.rules_text(), (
        "run target/deploy-venv/bin/python tests/deploy/rendered.py"
    )


def test_promtool_takes_the_rules():
    assert "SUCCESS" in promtool("check", "rules", rendered.RULES)


def test_the_unit_tests_of_the_rules_pass():
    assert "SUCCESS" in promtool("test", "rules", "tests/deploy/rules_test.yaml")


def test_every_alert_fires_in_a_unit_test():
    text = (tools.ROOT / "tests" / "deploy" / "rules_test.yaml").read_text()
    fired = set(re.findall(r'alertname="(\w+)"[^\n]*value: 1', text))
    assert fired == {rule["alert"] for rule in alerts()}


def test_every_alert_says_what_to_do():
    pages = set()
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert {"summary", "description", "runbook_url"} <= set(rule["annotations"]), rule["alert"]
        page = tools.ROOT / rule["annotations"]["runbook_url"]
        text = page.read_text()
        assert f"`{rule['alert']}`" in text, f"{page} does not speak of {rule['alert']}"
        for part in ("## What it means", "## Look", "## Do"):
            assert part in text, f"{page} has no part {part}"
        pages.add(page)
    assert pages == set(RUNBOOKS.glob("Ebb*.md")), "a page that no alert leads to"


def test_nothing_is_left_to_fill_in():
    assert "@" not in rendered.rules_text()


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"ttftSeconds": 1}, 'le=~"1([.]0)?"'),
        ({"ttftSeconds": 0.25}, 'le=~"0[.]25"'),
        ({"fastShort": "15s"}, "[15s]"),
        ({"objective": 0.999, "fastFactor": 10}, "> 10 * (1 - 0.999)"),
    ],
)
def test_parameters_reach_the_rules(parameters, expected):
    assert expected in str(rendered.rules(parameters))


def test_an_objective_must_be_a_bucket():
    with pytest.raises(chart.Refused, match="ttftSeconds"):
        rendered.rules({"ttftSeconds": 3})


def test_rules_of_two_releases_do_not_meet():
    for namespace_and_name in ('job="one",namespace="llm"', 'job="two",namespace="llm"'):
        name = namespace_and_name.split('"')[1]
        objects = chart.render({"alerts": {"enabled": True}}, release=name)
        assert namespace_and_name in str(chart.only(objects, "PrometheusRule")["spec"])
