"""Writes the dashboards as JSON, for the chart and for compose: `python
deploy/dashboards/build.py`.
"""

import importlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "chart" / "dashboards"
NAMES = ("serving", "precision", "capacity")


def text(name):
    """A dashboard's JSON."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return json.dumps(importlib.import_module(name).BOARD, indent=1) + "\n"


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for name in NAMES:
        (OUT / f"{name}.json").write_text(text(name))
