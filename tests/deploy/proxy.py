"""Envoy as deploy/envoy.yaml sets it up."""

import json
import subprocess
import time
import urllib.request

import yaml

import tools
from prom import free_port


class Envoy:
    """Envoy before these addresses, with the committed configuration but for addresses and ports;
    with `tls`, files of a certificate and its key, clients must speak TLS.
    """

    def __init__(self, work, addresses, tls=None):
        config = yaml.safe_load((tools.ROOT / "deploy" / "envoy.yaml").read_text())
        self.port, self.admin = free_port(), free_port()
        (listener,) = config["static_resources"]["listeners"]
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": self.port}
        if tls:
            certificate, key = ({"filename": str(path)} for path in tls)
            context = {
                "tls_certificates": [{"certificate_chain": certificate, "private_key": key}],
                "alpn_protocols": ["h2"],
            }
            kind = (
                "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
            )
            socket = {"name": "tls", "typed_config": {"@type": kind, "common_tls_context": context}}
            for chain in listener["filter_chains"]:
                chain["transport_socket"] = socket
        config["admin"]["address"]["socket_address"]["port_value"] = self.admin
        (cluster,) = config["static_resources"]["clusters"]
        endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert len(endpoints) == len(addresses)
        for endpoint, address in zip(endpoints, addresses):
            host, port = address.rsplit(":", 1)
            endpoint["endpoint"]["address"]["socket_address"] = {
                "address": host,
                "port_value": int(port),
            }
        path = work / "envoy.yaml"
        path.write_text(yaml.safe_dump(config))
        self.log = open(work / "envoy.log", "w+")
        command = [
            tools.envoy(),
            "-c",
            path,
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "warn",
        ]
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=self.log, stderr=self.log
        )
        self.address = f"127.0.0.1:{self.port}"

    def hosts(self):
        """{address: (healthy, requests in flight)}"""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.admin}/clusters?format=json", timeout=5
        ) as reply:
            clusters = json.load(reply)["cluster_statuses"]
        found = {}
        for host in clusters[0].get("host_statuses", []):
            place = host["address"]["socket_address"]
            active = next(
                int(stat.get("value", 0)) for stat in host["stats"] if stat["name"] == "rq_active"
            )
            healthy = not host["health_status"].get("failed_active_health_check", False)
            found[f"{place['address']}:{place['port_value']}"] = (healthy, active)
        return found

    def wait_healthy(self, count, seconds=30):
        deadline = time.monotonic() + seconds
        while True:
            try:
                hosts = self.hosts()
            except OSError:
                hosts = {}
            if sum(healthy for healthy, _ in hosts.values()) == count == len(hosts):
                return
            self.log.seek(0)
            assert time.monotonic() < deadline and self.process.poll() is None, (
                f"{hosts}\n{self.log.read()}"
            )
            time.sleep(0.1)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
