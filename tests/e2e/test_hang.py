"""An engine thread that does not come back: stopped with ptrace, while the rest of the process
runs."""

import ctypes
import os
import pathlib
import sys
import threading
import time

import grpc
import pytest

from api import Api, collect, greedy
from server import Server, eventually

ATTACH, DETACH = 16, 17
WALL = 0x40000000  # waitpid: threads, too

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ptrace is Linux's")


class StoppedThread:
    """Stops one thread of a child process, by name, until the end of the block."""

    def __init__(self, pid, name):
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        self.tid = next(int(t.name) for t in tasks if (t / "comm").read_text().strip() == name)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long] * 4

    def __enter__(self):
        if self.libc.ptrace(ATTACH, self.tid, 0, 0) != 0:
            pytest.skip(f"this machine forbids ptrace: {os.strerror(ctypes.get_errno())}")
        os.waitpid(self.tid, WALL)
        return self

    def reap(self):
        """Lets the kernel end a process whose thread is held here."""
        try:
            os.waitpid(self.tid, WALL | os.WNOHANG)
        except ChildProcessError:
            pass

    def __exit__(self, *_):
        self.libc.ptrace(DETACH, self.tid, 0, 0)


def busy(api):
    """A request that runs until it is stopped, in a thread."""
    request = api.request("Count.", sampling=greedy(4000, ignore_eos=True))
    thread = threading.Thread(target=lambda: collect(api.stream(request)), daemon=True)
    thread.start()
    return thread


def test_a_hung_engine_is_seen_and_deadlines_are_kept():
    with Server("--hang-timeout", "1") as server:
        api = Api(server.address)
        busy(api)
        eventually(lambda: server.value("vllm:num_requests_running") == 1, 10)
        with StoppedThread(server.process.pid, "ebb-engine"):
            began = time.monotonic()
            result = api.generate("Hi", timeout_ms=500, sampling=greedy(5))
            assert result.status == grpc.StatusCode.DEADLINE_EXCEEDED, result.message
            assert time.monotonic() - began < 1.5
            assert server.get("/livez")[0] == 200
            eventually(lambda: server.get("/livez")[0] == 503, 2)
            assert "--hang-timeout" in server.get("/readyz")[1]
            eventually(lambda: not api.healthy(), 1)
            assert 1 < server.value("ebb:step_age_seconds") < 10
        eventually(lambda: server.get("/livez")[0] == 200, 5)
        eventually(api.healthy, 1)
        api.close()


def test_a_hung_engine_ends_within_the_grace_period():
    with Server("--hang-timeout", "1", "--grace-period", "3") as server:
        api = Api(server.address)
        busy(api)
        eventually(lambda: server.value("vllm:num_requests_running") == 1, 10)
        with StoppedThread(server.process.pid, "ebb-engine") as stopped:
            began = time.monotonic()
            server.signal()
            while server.process.poll() is None:
                stopped.reap()
                time.sleep(0.02)
                assert time.monotonic() - began < 10, "".join(server.log[-5:])
            assert time.monotonic() - began < 4.5
