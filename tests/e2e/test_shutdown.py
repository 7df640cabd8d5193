"""Starting and stopping."""

import concurrent.futures
import signal
import subprocess
import time

import grpc
from grpc_health.v1 import health_pb2

from api import Api, Result, collect, greedy
from server import Server, binary, model_flags

CODE = grpc.StatusCode


def begin(api, count, tokens):
    """Streams that have begun to answer, with what they answered so far."""
    sampling = greedy(tokens, ignore_eos=True)
    streams = []
    for i in range(count):
        stream, result = api.stream(api.request(f"Tale {i}:", sampling=sampling)), Result()
        while not result.deltas:
            result.add(next(stream))
        streams.append((stream, result))
    return streams


def test_sigterm_loses_nothing():
    with Server("--grace-period", "30") as server:
        api = Api(server.address)
        streams = begin(api, 6, 60)
        watch = api.health.Watch(health_pb2.HealthCheckRequest())
        next(watch)
        server.signal(signal.SIGTERM)
        assert next(watch).status == 2, "health did not turn NOT_SERVING"
        assert not api.healthy("ebb.v1.Ebb")
        assert server.get("/readyz")[0] == 503
        assert server.get("/healthz")[0] == 200
        assert api.generate("late", sampling=greedy(1)).status == CODE.UNAVAILABLE
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            results = list(pool.map(lambda pair: collect(*pair), streams))
        for result in results:
            assert result.status == CODE.OK, result.message
            assert len(result[0].token_ids) == result[0].finished.completion_tokens == 60
        assert server.exit_code() == 0


def test_an_idle_server_stops_at_once():
    with Server() as server:
        api = Api(server.address)
        assert api.healthy()
        began = time.monotonic()
        server.signal(signal.SIGINT)
        assert server.exit_code() == 0
        assert time.monotonic() - began < 3


def test_the_grace_period_and_the_second_signal_are_kept():
    with Server("--grace-period", "1") as server:
        ((stream, result),) = begin(Api(server.address), 1, 4000)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert collect(stream, result).status == CODE.UNAVAILABLE
        assert server.exit_code() == 0
        assert 0.5 < time.monotonic() - began < 3
    with Server("--grace-period", "600") as server:
        begin(Api(server.address), 1, 4000)
        server.signal(signal.SIGTERM)
        server.wait_for("finishing what runs, for at most 600 s; a second signal ends at once")
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 2


def test_a_taken_port_is_one_sentence(server):
    port = server.address.rsplit(":", 1)[1]
    command = [
        binary(),
        "serve",
        "--port",
        port,
        "--http-port",
        "0",
        "--metrics-port",
        "0",
        *model_flags(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("ebb: ") and port in sentence and "--port" in sentence
    assert "panicked" not in done.stderr
