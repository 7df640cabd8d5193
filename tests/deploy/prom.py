"""A real Prometheus for a test: scrapes, evaluates rules, answers queries."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import tools

INTERVAL = "1s"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Prometheus:
    """Runs while it is used as a context manager. Targets are {job: ([addresses], labels)}."""

    def __init__(self, work, targets, rules):
        self.address = f"127.0.0.1:{free_port()}"
        (work / "rules.yaml").write_text(yaml.safe_dump(rules))
        config = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [str(work / "rules.yaml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": addresses, "labels": labels}]}
                for job, (addresses, labels) in targets.items()
            ],
        }
        (work / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self.log = open(work / "prometheus.log", "w+")
        self.command = [
            tools.prometheus("prometheus"),
            f"--config.file={work / 'prometheus.yaml'}",
            f"--storage.tsdb.path={work / 'data'}",
            f"--web.listen-address={self.address}",
        ]

    def __enter__(self):
        self.process = subprocess.Popen(
            [str(part) for part in self.command], stderr=self.log, stdout=self.log
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5)
                return self
            except OSError:
                self.log.seek(0)
                assert self.process.poll() is None and time.monotonic() < deadline, self.log.read()
                time.sleep(0.1)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def get(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expression):
        """Samples now: [(labels, value)]."""
        data = self.get("query", query=expression)
        assert data["resultType"] == "vector", expression
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def wait(self, expression, seconds, present=True):
        """Waits until a query has a sample, or none; gives the seconds that it took."""
        began = time.monotonic()
        while bool(self.query(expression)) != present:
            waited = time.monotonic() - began
            assert waited < seconds, (
                f"after {seconds} s: {expression} is {'not ' if present else ''}there"
            )
            time.sleep(0.2)
        return time.monotonic() - began

    def rules(self):
        """Every rule as Prometheus has it: health, last error, query."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
