"""Files of deploy/ that are made from others. `python rendered.py` writes them; a test says when
they are out of step.
"""

import yaml

import chart
import tools

RULES = tools.ROOT / "deploy" / "compose" / "rules.yaml"
HEAD = (
    "# deploy/chart/files/rules.yaml with the chart's default values. "
    "Made by tests/deploy/rendered.py.\n"
)


def rules(parameters=None, selector='job="ebb"'):
    """The groups of the chart's PrometheusRule."""
    values = {"alerts": {"enabled": True, "selector": selector, "parameters": parameters or {}}}
    return {"groups": chart.only(chart.render(values), "PrometheusRule")["spec"]["groups"]}


def rules_text():
    return HEAD + yaml.safe_dump(rules(), sort_keys=False, width=200)


if __name__ == "__main__":
    RULES.write_text(rules_text())
