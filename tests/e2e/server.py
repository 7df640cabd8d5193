"""Starts and stops `ebb serve`."""

import json
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
START_SECONDS = 300  # The first start may fetch the model.


def binary(program="ebb", variable="EBB_BIN"):
    """Path of a program under test: what the variable names, else what was built last, in debug or
    release.
    """
    if variable in os.environ:
        return pathlib.Path(os.environ[variable])
    built = [TARGET / profile / program for profile in ("debug", "release")]
    built = [path for path in built if path.exists()]
    assert built, (
        f"there is no {program} to test; run `cargo build --workspace` first, or set {variable}"
    )
    return max(built, key=lambda path: path.stat().st_mtime)


def model_flags():
    """The model under test; by default the one that ebb fetches by itself."""
    model = os.environ.get("EBB_TEST_MODEL")
    return ["--model", model] if model else []


def eventually(check, seconds, what="it"):
    """Waits until `check` is true; fails when that takes too long."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


class Server:
    """A running server, of the model under test or of `model`, with more variables in its
    environment. Use it as a context manager. One that speaks TLS needs a `context` in which its
    HTTP ports are asked.
    """

    def __init__(
        self,
        *flags,
        model=None,
        kv_memory="256MiB",
        descriptors=None,
        limit=None,
        context=None,
        env=None,
    ):
        self.context, self.scheme = context, "http" if context is None else "https"
        ports = [flag for flag in ("--port", "--http-port", "--metrics-port") if flag not in flags]
        ports = [part for flag in ports for part in (flag, "0")]
        command = [
            binary(),
            "serve",
            *ports,
            "--log-format",
            "json",
            "--kv-memory",
            kv_memory,
            *(model_flags() if model is None else [model]),
            *flags,
        ]
        if descriptors is not None:
            limit = f"ulimit -n {descriptors}"
        if limit is not None:
            command = ["sh", "-c", f'{limit} && exec "$0" "$@"', *command]
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.log = []
        self._events = queue.Queue()
        threading.Thread(target=self._read_log, daemon=True).start()
        try:
            listening = self.wait_for("listening")
            self.address, self.http = listening["grpc"], listening["http"]
            self.api = listening["api"]
            self.wait_for("ready")
        except BaseException:
            self.process.kill()
            raise

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            try:
                self._events.put(json.loads(line))
            except ValueError:
                pass  # Not of the log: a panic or a progress bar.
        self._events.put(None)

    def wait_for(self, message, seconds=START_SECONDS):
        """The next log event with this message."""
        deadline = time.monotonic() + seconds
        while True:
            event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            assert event is not None, f"ebb ended while {message!r} was awaited:\n" + "\n".join(
                self.log
            )
            if event.get("message") == message:
                return event

    def _open(self, request, timeout):
        return urllib.request.urlopen(request, timeout=timeout, context=self.context)

    def get(self, path):
        """Status and text of a GET on the HTTP port."""
        try:
            with self._open(f"{self.scheme}://{self.http}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self, path):
        """Status of a GET of the HTTP API."""
        try:
            with self._open(f"{self.scheme}://{self.api}{path}", timeout=10) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def ask(self, path, body=None, **headers):
        """Status, JSON and headers of a call of the HTTP API: a POST of `body`, or a GET."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(f"{self.scheme}://{self.api}{path}", data, headers)
        try:
            with self._open(request, timeout=30) as reply:
                return reply.status, json.loads(reply.read()), reply.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def metrics(self):
        """All samples: {(name, frozenset of labels beside model_name and engine): value}."""
        status, text = self.get("/metrics")
        assert status == 200
        samples = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {
                    k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")
                }
                samples[sample.name, frozenset(labels.items())] = sample.value
        return samples

    def value(self, name, **labels):
        """One sample's value; 0 when it has never been counted."""
        return self.metrics().get((name, frozenset(labels.items())), 0.0)

    def total(self, name):
        """Sum over all labels."""
        return sum(value for (sample, _), value in self.metrics().items() if sample == name)

    def idle(self, seconds=10):
        """Waits until nothing runs or waits; fails when that takes too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (
                self.value("vllm:num_requests_running")
                == self.value("vllm:num_requests_waiting")
                == 0
            ):
                return
            time.sleep(0.02)
        raise AssertionError(f"the server is still busy after {seconds} s")

    def memory(self, key="VmRSS"):
        """A size of the process in MiB, as /proc/PID/status has it."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith(key + ":")]
        return int(line.split()[1]) / 1024

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def exit_code(self, seconds=40):
        """Waits for the process to end."""
        return self.process.wait(timeout=seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
