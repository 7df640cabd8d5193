"""Dashboards and the compose file, before anything runs."""

import copy
import json
import re
import subprocess
import sys

import jsonschema
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard

import chart
import tools
from boards import PATHS, boards, panels

COMPOSE = tools.ROOT / "deploy" / "compose"
sys.path.insert(0, str(tools.ROOT / "deploy" / "dashboards"))
import build  # noqa: E402


def test_the_committed_boards_are_what_their_source_makes():
    assert {path.stem for path in PATHS} == set(build.NAMES)
    for path in PATHS:
        assert path.read_text() == build.text(path.stem), "run python deploy/dashboards/build.py"


def lost(ours, theirs, place=""):
    """What is in one JSON value and not in the other."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            yield from (
                lost(value, theirs[key], f"{place}.{key}") if key in theirs else [f"{place}.{key}"]
            )
    elif isinstance(ours, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs)):
            yield from lost(*pair, f"{place}[{index}]")
    elif ours != theirs:
        yield f"{place}: {ours!r} became {theirs!r}"


@pytest.mark.parametrize("name", build.NAMES)
def test_grafana_knows_every_field(name):
    """Read into the types that Grafana publishes and written again, a board is the same: nothing in
    it is unknown.
    """
    register_default_plugins()
    board = boards()[name]
    again = json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(board)))
    assert list(lost(board, again)) == []


@pytest.mark.parametrize("name", build.NAMES)
def test_every_panel_has_a_unit_and_a_sentence(name):
    for panel in panels(boards()[name]):
        title = panel["title"]
        assert re.fullmatch(r"[A-Z].{20,}\.", panel["description"]), (
            f"{title}: {panel['description']}"
        )
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["targets"] and all(target["expr"] for target in panel["targets"]), title
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)), title


@pytest.mark.parametrize("name", build.NAMES)
def test_panels_lie_side_by_side(name):
    taken = {}
    for panel in boards()[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    ids = [panel["id"] for panel in boards()[name]["panels"]]
    assert len(ids) == len(set(ids))


def test_queries_use_only_variables_that_exist():
    for name, board in boards().items():
        known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
        for panel in panels(board):
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for target in panel["targets"]:
                assert set(re.findall(r"\$\{?(\w+)", target["expr"])) <= known, (
                    f"{name} / {panel['title']}"
                )


def test_the_serving_board_shows_a_vllm_server_too():
    for panel in panels(boards()["serving"]):
        for target in panel["targets"]:
            assert "vllm:" in target["expr"] and "ebb:" not in target["expr"], panel["title"]


def test_the_chart_brings_the_boards():
    objects = chart.render({"monitoring": {"dashboards": {"enabled": True}}})
    maps = [
        one
        for one in chart.kinds(objects)["ConfigMap"]
        if "grafana_dashboard" in one["metadata"]["labels"]
    ]
    found = {file: json.loads(text) for one in maps for file, text in one["data"].items()}
    assert found == {f"ebb-{name}.json": board for name, board in boards().items()}


def test_the_compose_file_is_one():
    file = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    schema = json.loads(tools.compose_schema())
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.validate(file)
    # The schema is strict enough to find a slip.
    for service, name, value in [
        ("ebb", "read_onyl", True),
        ("ebb", "cap_drop", "ALL"),
        ("grafana", "ports", [{"targt": 1}]),
    ]:
        slip = copy.deepcopy(file)
        slip["services"][service][name] = value
        assert not validator.is_valid(slip), name


def test_the_compose_file_mounts_what_is_there():
    file = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    mounts = {}
    for name, service in file["services"].items():
        assert re.search(r":(?!latest)[\w.]+(-[\w.]+)*\}?$", service["image"]), (
            f"{name}: {service['image']}"
        )
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        for volume in service["volumes"]:
            source, target = volume.split(":", 1) if volume.startswith(".") else (None, volume)
            if source:
                path, mode = target.rsplit(":", 1)
                assert (COMPOSE / source).exists() and mode == "ro", volume
                mounts[path] = COMPOSE / source
    ebb = file["services"]["ebb"]
    assert ebb["read_only"] and ebb["cap_drop"] == ["ALL"]
    grace = int(
        next(flag.split("=")[1] for flag in ebb["command"] if flag.startswith("--grace-period"))
    )
    assert int(ebb["stop_grace_period"].removesuffix("s")) > grace
    # Grafana finds the boards where the provider looks, and the source where they ask.
    (provider,) = yaml.safe_load((COMPOSE / "provisioning/dashboards/ebb.yaml").read_text())[
        "providers"
    ]
    assert mounts[provider["options"]["path"]].resolve() == (tools.CHART / "dashboards")
    (source,) = yaml.safe_load((COMPOSE / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in file["services"]
    command = file["services"]["prometheus"]["command"]
    assert (
        f"--config.file=/etc/prometheus/{mounts['/etc/prometheus/prometheus.yaml'].name}" in command
    )


def test_promtool_takes_the_compose_files_prometheus(tmp_path):
    text = (COMPOSE / "prometheus.yaml").read_text()
    config = yaml.safe_load(text)
    assert config["rule_files"] == ["/etc/prometheus/rules.yaml"]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "ebb", "the rules look for this job"
    here = tmp_path / "prometheus.yaml"
    here.write_text(text.replace("/etc/prometheus/", f"{COMPOSE}/"))
    done = subprocess.run(
        [tools.prometheus("promtool"), "check", "config", here], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
