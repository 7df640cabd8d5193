"""Options and what rows write down."""

import csv
import pathlib
import time

import pytest


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="the counts of the table")
    parser.addoption("--record", metavar="FILE", help="append the figures to a CSV file")


@pytest.fixture
def full(request):
    """Whether counts are those of the table, not the quick ones."""
    return request.config.getoption("--full")


@pytest.fixture
def record(request, full):
    """`record(row, what, value, unit, target)`: a figure, for the table of results."""
    path = request.config.getoption("--record")

    def write(row, what, value, unit, target):
        value = f"{value:.4g}" if isinstance(value, float) else str(value)
        print(f"row {row}: {what}: {value} {unit} (target {target})")
        if path is None:
            return
        new = not pathlib.Path(path).exists()
        with open(path, "a", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            if new:
                rows.writerow(["row", "form", "what", "value", "unit", "target", "when"])
            form = "full" if full else "quick"
            rows.writerow([row, form, what, value, unit, target, time.strftime("%Y-%m-%d")])

    return write
