"""Clients that hold what they do not use: the others do not wait for them."""

import contextlib
import resource
import socket
import time

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
