"""Clients that hold what they do not use: the others do not wait for them."""

import collections
import concurrent.futures
import contextlib
import resource
import socket
import time

import grpc
import pytest

from api import Api, greedy
from server import Server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(autouse=True)
def descriptors():
    """This process holds the other ends of all connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5)


def test_1100_silent_connections_on_each_port_lock_nobody_out():
    with Server(descriptors=1024) as server, contextlib.ExitStack() as held:
        early = Api(server.address)
        held.callback(early.close)
        assert early.generate("One", sampling=greedy(1)).status.name == "OK"
        for i in range(1100):
            for address in (server.address, server.http):
                silent = held.enter_context(connect(address))
                if i % 2:
                    silent.sendall(PREFACE[:12] if address == server.address else b"GET /met")

        began = time.monotonic()
        for _ in range(3):
            with contextlib.closing(Api(server.address)) as api:
                assert api.generate("Two", sampling=greedy(1)).status.name == "OK"
        assert early.generate("Three", sampling=greedy(1)).status.name == "OK"
        for path in ("/healthz", "/readyz", "/metrics"):
            assert server.get(path)[0] == 200
        assert time.monotonic() - began < 10

        samples = server.metrics()
        for port in ("grpc", "http"):
            label = frozenset({("port", port)})
            made_way = frozenset({("port", port), ("reason", "made_way")})
            open_, most = samples["ebb:connections", label], samples["ebb:max_connections", label]
            assert open_ <= most < 900
            assert samples["ebb:connections_closed_total", made_way] >= 1100 - most
        assert most < 100  # The rest of 1,024 is not HTTP's.
        # A flood is not a log.
        assert len(server.log) < 40


def code(call):
    """The name of a call's status."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def test_many_long_texts_at_once_take_bounded_memory():
    with contextlib.ExitStack() as held:
        server = held.enter_context(Server("--client-memory", "128MiB"))
        api = held.enter_context(contextlib.closing(Api(server.address)))
        api.call("Tokenize", text="warm")
        before = server.memory()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            digits = "7" * 300_000
            calls = [
                pool.submit(code, lambda: api.call("Tokenize", text=digits, timeout=60))
                for _ in range(12)
            ]
            peak = before
            while not all(call.done() for call in calls):
                peak = max(peak, server.memory())
                time.sleep(0.01)
        codes = [call.result() for call in calls]
        counts = collections.Counter(name for name, _ in codes)
        assert set(counts) <= {"OK", "RESOURCE_EXHAUSTED"} and counts["OK"] > 0, counts
        for name, details in codes:
            assert name == "OK" or "--client-memory" in details
        assert peak - before < 128 + 64, f"{peak - before:.0f} MiB for {counts}"
        assert server.value("ebb:client_memory_bytes") < 1 << 20

        # What cannot fit is refused without any work.
        most = api.call("GetModelInfo").max_context
        began = time.monotonic()
        name, details = code(lambda: api.call("Tokenize", text="7" * 3_000_000))
        assert (name, f"cannot fit a context of {most} tokens" in details) == (
            "INVALID_ARGUMENT",
            True,
        ), details
        assert time.monotonic() - began < 1


def test_texts_of_clients_that_left_and_long_ones_keep_no_short_one_waiting():
    with Server() as server:
        chat = [("user", "Hi")]
        with contextlib.closing(Api(server.address)) as api:
            assert api.generate(chat=chat, sampling=greedy(1)).status.name == "OK"
            leaving, staying = Api(server.address), Api(server.address)
            text = "7, " * 100_000
            # Kept: grpcio cancels a call that nobody refers to.
            left = [leaving.start("Tokenize", text=text) for _ in range(60)]
            calls = [staying.start("Tokenize", text=text) for _ in range(6)]
            time.sleep(0.3)
            leaving.close()
            assert not any(call.done() and call.code().name == "OK" for call in left[20:])
            times = []
            for _ in range(5):
                began = time.monotonic()
                assert api.generate(chat=chat, sampling=greedy(1)).status.name == "OK"
                times.append(time.monotonic() - began)
            assert max(times) < 3, times
            # Those that wait get their answer, and nothing is left of the others.
            assert len({len(call.result().token_ids) for call in calls}) == 1
            staying.close()
            deadline = time.monotonic() + 10
            while server.value("ebb:client_memory_bytes") > 1 << 20:
                assert time.monotonic() < deadline, "client memory is not given back"
                time.sleep(0.1)
