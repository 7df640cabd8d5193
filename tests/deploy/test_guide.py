"""The operator's guide and the runbooks speak of what is there."""

import json
import re
import subprocess

import pytest

import chart
import tools
from boards import boards
from server import binary
from test_ebb_load import binary as load_generator

DEPLOY = tools.ROOT / "deploy"
PAGES = [DEPLOY / "guide.md", *sorted((DEPLOY / "runbooks").glob("*.md"))]
# Flags of other programs in the pages.
OTHERS = {"--previous", "--timeout", "--namespace", "--create-namespace", "--set", "--reuse-values"}


def flags(program, *command):
    done = subprocess.run([program, *command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"--[a-z][a-z-]+", done.stdout))


@pytest.fixture(scope="module")
def known_flags():
    bench = binary("ebb-bench", "EBB_BENCH_BIN")
    commands = [(binary(), command) for command in ("serve", "eval", "calibrate", "fetch")]
    commands += [(bench, "simulate"), (load_generator(), "closed")]
    image = set(re.findall(r"^ +(--[a-z-]+)\)", (DEPLOY / "image.sh").read_text(), re.M))
    return image.union(*(flags(*one) for one in commands))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_flags_exist(page, known_flags):
    said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
    assert said - OTHERS <= known_flags


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_metrics_exist(page):
    source = "".join(
        path.read_text() for path in (tools.ROOT / "engine/serving/src/metrics").glob("*.rs")
    )
    source += (DEPLOY / "chart/files/rules.yaml").read_text()
    for name in re.findall(r"(?<!/)\b(?:vllm|ebb):[a-z]\w+(?::\w+)?", page.read_text()):
        assert name in source or name.removesuffix("_total") in source, name


def places(text):
    """What links may lead to in a page: its headings and what it names."""
    headings = {
        heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, flags=re.M)
    }
    return headings | set(re.findall(r'<a name="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, place = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if place and target.is_file():
            assert place in places(target.read_text()), link


def test_quoted_errors_are_the_programs():
    source = "".join(
        path.read_text() for path in sorted((tools.ROOT / "engine").rglob("src/**/*.rs"))
    )
    source = re.sub(r"\\\n\s*", "", source)
    source = re.sub(r"\{\w*\}", "{}", source.replace("`{}`", "{}").replace("`{0}`", "{}"))
    table = (DEPLOY / "guide.md").read_text().split("## What errors mean")[1]
    quoted = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) >= 2:
            quoted += re.findall(r"`([^`]+)`", " ".join(cells[:-1]))
    assert len(quoted) > 20
    for text in quoted:
        assert re.sub(r"\{\w*\}", "{}", text) in source, text


def test_values_that_the_guide_names_exist():
    values = json.loads((tools.CHART / "values.schema.json").read_text())["properties"]
    named = re.findall(
        r"`((?:model|auth|tls|kv|gpu|drain|autoscaling|monitoring|alerts|resources|grpcRoute|inferencePool|networkPolicy)\.[\w.]+)",
        "".join(p.read_text() for p in PAGES),
    )
    named += re.findall(r"--set ([\w.]+)=", (DEPLOY / "guide.md").read_text())
    assert len(named) > 20
    for name in named:
        place = {"properties": values}
        for part in name.split("."):
            if "$ref" in place:
                place = json.loads((tools.CHART / "values.schema.json").read_text())["$defs"][
                    place["$ref"].split("/")[-1]
                ]
            if part not in place.get("properties", {}) and isinstance(
                place.get("additionalProperties"), dict
            ):
                break
            assert part in place.get("properties", {}), name
            place = place["properties"][part]


def test_the_commands_of_the_guide_render():
    text = (DEPLOY / "guide.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"^helm (?:install|upgrade) ebb deploy/chart(.*)$", text, flags=re.M)
    assert len(commands) == 2
    for command in commands:
        chart.helm(
            "template",
            "ebb",
            tools.CHART,
            *command.replace("--create-namespace", "").replace("--reuse-values", "").split(),
        )


def test_the_panels_that_the_pages_read_exist():
    titles = {panel["title"].lower() for board in boards().values() for panel in board["panels"]}
    # Boards, and a page of Prometheus.
    titles |= {*boards(), "targets"}
    texts = [page.read_text() for page in PAGES[1:]]
    texts.append(
        (DEPLOY / "guide.md")
        .read_text()
        .split("**Reading the Precision board**")[1]
        .split("## ")[0]
    )
    said = {
        name.lower()
        for text in texts
        for name in re.findall(r"(?<!\*)\*([A-Za-z][^*]+)\*(?!\*)", text)
    }
    assert len(said) >= 15 and said <= titles, said - titles


def commands(program):
    """Lines of the guide that run a program, without their comments."""
    text = (DEPLOY / "guide.md").read_text().replace("\\\n", " ")
    return [
        line.split("#")[0].split()[1:] for line in re.findall(rf"^{program} .*$", text, flags=re.M)
    ]


def test_the_simulator_takes_the_guides_commands():
    assert len(commands("ebb-bench")) == 2
    trace = tools.ROOT / "benches/data/azure_conv_2023.csv"
    for command in commands("ebb-bench"):
        command = [str(trace) if word == "day.csv" else word for word in command]
        done = subprocess.run(
            [binary("ebb-bench", "EBB_BENCH_BIN"), *command, "--requests", "100", "--json"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0 and "progressive" in done.stdout, done.stderr


def test_eval_takes_the_guides_command():
    (command,) = (words for words in commands("ebb") if words[0] == "eval")
    done = subprocess.run([binary(), *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "yours.txt" in done.stderr, done.stderr
