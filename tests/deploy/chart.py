"""Renders the chart."""

import json
import pathlib
import subprocess
import tempfile

import yaml

import tools

NAMESPACE = "llm"


class Refused(Exception):
    """Helm's words."""


def helm(*arguments):
    """Runs Helm; gives its output, or raises [`Refused`]."""
    done = subprocess.run([tools.helm(), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr + done.stdout)
    return done.stdout


def render(values=None, release="ebb"):
    """Every object of the chart with these values, as the API server would get it."""
    with tempfile.TemporaryDirectory() as work:
        given = pathlib.Path(work) / "values.json"
        given.write_text(json.dumps(values or {}))
        text = helm("template", release, tools.CHART, "--namespace", NAMESPACE, "--values", given)
    return [one for one in yaml.load_all(text, UniqueKeys) if one]


def kinds(objects):
    """Objects by kind."""
    found = {}
    for one in objects:
        found.setdefault(one["kind"], []).append(one)
    return found


def only(objects, kind):
    """The one object of a kind."""
    (one,) = kinds(objects)[kind]
    return one


class UniqueKeys(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):
    """YAML in which a key twice is an error, as it is to a strict API server."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}"
        return super().construct_mapping(node, deep)
