"""The dashboards as Grafana gets them, and what their queries ask when nothing is chosen."""

import json
import re

import tools

PATHS = sorted((tools.CHART / "dashboards").glob("*.json"))


def boards():
    return {path.stem: json.loads(path.read_text()) for path in PATHS}


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(window):
    """Every query of every panel as (place, expression), all variables at their defaults."""
    for name, board in boards().items():
        values = {"__rate_interval": window, "__range": window}
        for variable in board["templating"]["list"]:
            values[variable["name"]] = variable.get("allValue") or variable.get("current", {}).get(
                "value", ""
            )
        for panel in panels(board):
            for target in panel["targets"]:
                expression = re.sub(
                    r"\$\{?(\w+)\}?", lambda match: values[match[1]], target["expr"]
                )
                yield f"{name} / {panel['title']} / {target['refId']}", expression
