"""Certificates that are wrong, expired or rotated: row 15. Keys and limits: row 16."""

import concurrent.futures
import http.client
import itertools
import json
import os
import socket
import threading
import time

import grpc
import pytest
from clients import Api, Authority, Link, eventually, greedy, tiny

CODE = grpc.StatusCode


class Mount:
    """A folder of files that change all at once, as Kubernetes mounts Secrets."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        folder.mkdir()

    def path(self, name):
        return self.folder / "..data" / name

    def write(self, **files):
        self.count += 1
        version = self.folder / f"..{self.count}"
        version.mkdir()
        for name, content in files.items():
            (version / name.replace("_", ".")).write_bytes(content)
        link = self.folder / "..new"
        link.symlink_to(version.name)
        os.replace(link, self.folder / "..data")


class Certified:
    """A server whose clients need certificates, and whose files are mounted."""

    def __init__(self, folder):
        self.servers = Authority(folder, "servers")
        self.old, self.new = Authority(folder, "old"), Authority(folder, "new")
        self.mount = Mount(folder / "mount")

    def write(self, *authorities):
        """A new certificate for the server; clients may have theirs from these authorities."""
        cert, key = self.servers.issue()
        trusted = b"".join(authority.path.read_bytes() for authority in authorities)
        self.mount.write(tls_crt=cert.read_bytes(), tls_key=key.read_bytes(), ca_crt=trusted)

    def start(self, *flags):
        paths = [self.mount.path(name) for name in ("tls.crt", "tls.key", "ca.crt")]
        named = zip(("--tls-cert", "--tls-key", "--tls-client-ca"), paths)
        given = itertools.chain.from_iterable(named)
        return tiny(*given, *flags, context=self.servers.context(self.old.issue()))

    def presented(self, server, identity):
        """The certificate that a new connection sees."""
        host, port = server.api.rsplit(":", 1)
        context = self.servers.context(identity)
        with socket.create_connection((host, int(port)), timeout=5) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                return secure.getpeercert(binary_form=True)

    def http(self, server, identity, body=None):
        """Status of one call on a connection of its own; 0 when there is none."""
        context = self.servers.context(identity)
        connection = http.client.HTTPSConnection(server.api, timeout=20, context=context)
        try:
            headers = {"Content-Type": "application/json"}
            body = body or {"prompt": "Hi", "max_tokens": 3}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            reply = connection.getresponse()
            reply.read()
            return reply.status
        except OSError:
            return 0
        finally:
            connection.close()

    def grpc(self, server, api, identity, timeout=20):
        """Status of one call on a connection of its own."""
        link = Link(api, server.address, credentials=self.servers.credentials(identity))
        try:
            return link.generate("Hi", sampling=greedy(2), timeout=timeout).status
        finally:
            link.channel.close()


@pytest.fixture
def certified(tmp_path):
    return Certified(tmp_path)


def test_row_15_unsound_certificates_are_rejected(certified, full, record):
    certified.write(certified.old)
    count = 50 if full else 6
    with certified.start() as server:
        good = certified.old.issue()
        api = Api(server.address, credentials=certified.servers.credentials(good))
        kinds = {
            "none": lambda: None,
            "of another authority": certified.new.issue,
            "of the server's authority": certified.servers.issue,
            "expired": lambda: certified.old.issue(days=-1),
        }
        for what, issue in kinds.items():
            let_in = 0
            for _ in range(count):
                identity = issue()
                let_in += certified.http(server, identity) != 0
                let_in += certified.grpc(server, api, identity, timeout=2) == CODE.OK
            record(15, f"rejected, {what}", 2 * count - let_in, f"of {2 * count}", "all")
            assert let_in == 0, what
        assert certified.http(server, good) == 200
        assert certified.grpc(server, api, good) == CODE.OK
        api.close()


def test_row_15_rotation_loses_nothing(certified, full, record):
    both = (certified.old, certified.new)
    certified.write(certified.old)
    rotations = 10 if full else 2
    with certified.start() as server:
        old, new = certified.old.issue(), certified.new.issue()
        api = Api(server.address, credentials=certified.servers.credentials(old))
        stop, done, lost = threading.Event(), [0], []

        def ask(call):
            """Calls in a loop; what did not succeed is lost."""
            while not stop.is_set():
                result = call()
                if result in (200, CODE.OK):
                    done[0] += 1
                else:
                    lost.append(result)

        def long(link):
            # Longer than a rotation takes: its connection outlives the certificate.
            return link.generate("Tale", sampling=greedy(400, ignore_eos=True)).status

        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(ask, lambda: certified.http(server, old)) for _ in range(2)]
            asked += [pool.submit(ask, lambda: long(api))]
            asked += [pool.submit(ask, lambda: certified.grpc(server, api, old))]
            try:
                for _ in range(rotations):
                    before = certified.presented(server, old)
                    certified.write(*both)
                    began = time.monotonic()
                    eventually(
                        lambda: certified.presented(server, old) != before, 10, "the rotation"
                    )
                    record(15, "rotation", time.monotonic() - began, "s", "-")
            finally:
                stop.set()
        for future in asked:
            future.result()
        record(15, "requests during rotations", done[0], "-", "-")
        record(15, "lost in rotations", len(lost), "requests", 0)
        assert not lost and done[0] > 10 * rotations
        # Clients have moved to the new authority: the old one's certificates are no good.
        certified.write(certified.new)
        eventually(lambda: certified.http(server, old) == 0, 10, "the old authority is gone")
        let_in = sum(certified.http(server, certified.old.issue()) != 0 for _ in range(20))
        record(15, "rejected, rotated", 20 - let_in, "of 20", "all")
        assert let_in == 0 and certified.http(server, new) == 200
        api.close()


KEYS = [f"HUSH-{i}-of-many" for i in range(3)]


def test_row_16_keys_and_their_limits(tmp_path, full, record):
    count = 2000 if full else 100
    path = tmp_path / "keys"
    path.write_text(
        f"{KEYS[0]} name=WISP-free\n{KEYS[1]} name=WISP-few max-concurrency=1\n"
        f"{KEYS[2]} name=WISP-slow requests-per-minute=5\n"
    )
    with tiny("--api-key-file", path, "--log", "trace") as server:
        api = Api(server.address)
        body = {"prompt": "MARK-prompt", "max_tokens": 2}
        wrong = ["", "HUSH", "HUSH-0-of-man", "HUSH-0-of-many2", "hush-0-of-many", "é"]

        def status(key):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return server.ask("/v1/completions", body, **headers)[0]

        def code(key):
            api.metadata = [("x-api-key", key)] if key else []
            return api.generate("MARK-prompt", sampling=greedy(2)).status

        before = server.total("vllm:prompt_tokens_total")
        began, refused = time.monotonic(), 0
        for i in range(count):
            key = wrong[i % len(wrong)]
            refused += status(key) == 401
            # Metadata of gRPC is ASCII: clients do not send others.
            refused += code(key if key.isascii() else "") == CODE.UNAUTHENTICATED
        took = (time.monotonic() - began) / (2 * count)
        record(16, "refused without a right key", refused, f"of {2 * count}", "all")
        record(16, "time of a refusal", 1000 * took, "ms", "-")
        assert refused == 2 * count
        assert server.total("vllm:prompt_tokens_total") == before, "the engine was touched"

        # One at once, over both protocols.
        api.metadata = [("x-api-key", KEYS[1])]
        sampling = greedy(6000, ignore_eos=True)
        stream = api.stream(api.request("MARK-prompt", sampling=sampling))
        next(stream)
        refused = sum(status(KEYS[1]) == 429 for _ in range(20))
        refused += sum(code(KEYS[1]) == CODE.RESOURCE_EXHAUSTED for _ in range(20))
        assert status(KEYS[0]) == 200
        stream.cancel()
        record(16, "refused beyond calls at once", refused, "of 40", "all")
        assert refused == 40
        eventually(lambda: status(KEYS[1]) == 200, 10, "the place is given back")

        # Five a minute, over both protocols: as many come through as there are, and no more.
        let_in = sum(status(KEYS[2]) == 200 for _ in range(3))
        let_in += sum(code(KEYS[2]) == CODE.OK for _ in range(4))
        status_429, answer, headers = server.ask(
            "/v1/completions", body, Authorization=f"Bearer {KEYS[2]}"
        )
        record(16, "let in of 7, 5 a minute", let_in, "calls", 5)
        assert let_in == 5 and status_429 == 429
        assert 1 <= int(headers["Retry-After"]) <= 12, answer
        metrics = server.get("/metrics")[1]
        assert "vllm:" in metrics and "HUSH" not in metrics and "WISP" not in metrics
        api.close()
        log = list(server.log)
    found = [line[:200] for line in log if "HUSH" in line or "MARK" in line]
    record(16, "keys and prompts in a log of level trace", len(found), "lines", 0)
    assert not found and len(log) > count, found[:5]
