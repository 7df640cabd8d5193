"""Two replicas behind Envoy, as deploy/envoy.yaml sets it up: what clients notice when one is
killed, and when one drains.
"""

import concurrent.futures
import signal
import threading
import time

import grpc
import pytest

from api import Api, Result, collect, greedy
from proxy import Envoy
from server import Server

LONG, SHORT = 250, 4


class Shorts:
    """Clients that send one short request after the other; each is kept as (sent, ended, status,
    details).
    """

    def __init__(self, address, clients=3):
        self.done, self.stopping = [], threading.Event()
        self.threads = [
            threading.Thread(target=self.run, args=(address, index), daemon=True)
            for index in range(clients)
        ]

    def run(self, address, index):
        api = Api(address, [("grpc.enable_retries", 0)])
        while not self.stopping.is_set():
            sent = time.monotonic()
            result = api.generate(
                f"{index}: {len(self.done)}", sampling=greedy(SHORT, ignore_eos=True), timeout=60
            )
            self.done.append((sent, time.monotonic(), result.status, result.message))
        api.close()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def world(tmp_path):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        starting = [
            pool.submit(Server, "--threads", "1", "--grace-period", "120") for _ in range(2)
        ]
    with starting[0].result() as first, starting[1].result() as second:
        envoy = Envoy(tmp_path, [first.address, second.address])
        try:
            envoy.wait_healthy(2)
            yield envoy, first, second
        finally:
            envoy.close()


def begin(api, servers):
    """Long answers that have begun, some on each server: which one gets a request is chance."""
    streams = []
    while len(streams) < 3 or not all(
        server.value("vllm:num_requests_running") for server in servers
    ):
        assert len(streams) < 20, "one replica gets everything"
        request = api.request(f"Tale {len(streams)}:", sampling=greedy(LONG, ignore_eos=True))
        stream, result = api.stream(request, timeout=300), Result()
        while not result.deltas:
            result.add(next(stream))
        streams.append((stream, result))
    return streams


def test_a_killed_replica_takes_only_its_own_requests_along(world):
    envoy, first, second = world
    api = Api(envoy.address, [("grpc.enable_retries", 0)])
    streams = begin(api, [first, second])
    with Shorts(envoy.address) as shorts:
        time.sleep(0.5)
        # Stopped first, so that what it holds can be counted before it is killed.
        first.signal(signal.SIGSTOP)
        in_flight = envoy.hosts()[first.address][1]
        first.signal(signal.SIGKILL)
        killed = time.monotonic()
        results = [collect(*pair) for pair in streams]
        time.sleep(max(0, killed + 4 - time.monotonic()))
    assert in_flight >= 1, "the killed replica had nothing to do"
    lost = [result for result in results if result.status != grpc.StatusCode.OK]
    assert 1 <= len(lost) < len(results), "both replicas were to hold some"
    failed = [one for one in shorts.done if one[2] != grpc.StatusCode.OK]
    assert len(lost) + len(failed) <= in_flight, (
        in_flight,
        [(sent - killed, *rest) for sent, *rest in failed],
    )
    # An answer that breaks off is a reset stream, which clients of gRPC call INTERNAL.
    codes = {result.status for result in lost} | {one[2] for one in failed}
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}
    # What was sent after the kill goes to the other one; the first of it is answered within 2 s.
    after = [one for one in shorts.done if one[0] > killed]
    assert after and all(one[2] == grpc.StatusCode.OK for one in after), failed
    recovered = min(one[1] for one in after) - killed
    print(
        f"killed with {in_flight} in flight: {len(lost) + len(failed)} failed; answered "
        f"again after {recovered:.2f} s"
    )
    assert recovered < 2
    api.close()


def test_a_draining_replica_loses_nothing(world):
    envoy, first, second = world
    api = Api(envoy.address, [("grpc.enable_retries", 0)])
    streams = begin(api, [first, second])
    with Shorts(envoy.address) as shorts:
        time.sleep(0.5)
        assert first.value("vllm:num_requests_running"), "the draining replica had nothing to do"
        first.signal(signal.SIGTERM)
        results = [collect(*pair) for pair in streams]
        assert first.exit_code(150) == 0
        gone = time.monotonic()
        time.sleep(2)
    assert {result.status for result in results} == {grpc.StatusCode.OK}, [
        result.message for result in results
    ]
    assert all(result[0].finished.completion_tokens == LONG for result in results)
    assert [one for one in shorts.done if one[2] != grpc.StatusCode.OK] == []
    assert any(one[0] > gone for one in shorts.done), "nothing was sent after it had gone"
    api.close()
