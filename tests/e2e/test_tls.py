"""TLS and certificates of clients, with the clients that people have."""

import json
import ssl
import subprocess
import urllib.error
import urllib.request

import grpc
import openai
import pytest

from api import Api, greedy
from certificates import Authority, tls_flags
from server import ROOT, Server, binary, model_flags

NAME = "SmolLM2-135M-Instruct"
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return Authority(folder, "servers"), Authority(folder, "clients")


@pytest.fixture(scope="module")
def secure(authorities):
    """A server with TLS that asks clients for certificates."""
    servers, clients = authorities
    identity = clients.issue()
    flags = tls_flags(servers.issue(), clients.path)
    with Server(*flags, context=servers.context(identity)) as server:
        server.identity = identity
        yield server


def test_openais_client_over_tls(secure, authorities):
    servers, _ = authorities
    url = f"https://{secure.api}/v1"
    context = servers.context(secure.identity)
    with openai.OpenAI(
        base_url=url,
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=context),
    ) as client:
        answer = client.completions.create(
            model=NAME, prompt="The capital of France is", max_tokens=5, temperature=0
        )
        assert "Paris" in answer.choices[0].text
        stream = client.completions.create(
            model=NAME, prompt="Once", max_tokens=30, stream=True, extra_body={"ignore_eos": True}
        )
        assert len(list(stream)) > 3
    without = openai.DefaultHttpxClient(verify=servers.context())
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=without) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.models.list()


def test_grpc_over_tls(secure, authorities):
    servers, clients = authorities
    api = Api(secure.address, credentials=servers.credentials(secure.identity))
    assert api.generate("Once", sampling=greedy(8)).status == CODE.OK
    assert api.healthy("ebb.v1.Ebb")
    expired = clients.issue(days=-1)
    for refused in (servers.credentials(), servers.credentials(expired)):
        channel = grpc.secure_channel(secure.address, refused)
        generate = channel.unary_stream("/ebb.v1.Ebb/Generate")
        with pytest.raises(grpc.RpcError) as error:
            list(generate(b"", timeout=5))
        assert error.value.code() in (CODE.UNAVAILABLE, CODE.DEADLINE_EXCEEDED)
        channel.close()
    api.close()


def test_probes_need_no_certificate_on_the_metrics_port(secure, authorities):
    servers, _ = authorities
    # As Kubernetes' probes ask: without looking at the server's certificate.
    unverified = ssl._create_unverified_context()
    for path, context in [("/readyz", servers.context()), ("/livez", unverified)]:
        url = f"https://{secure.http}{path}"
        with urllib.request.urlopen(url, context=context, timeout=10) as reply:
            assert reply.status == 200
    assert secure.status("/health") == 200
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        url = f"https://{secure.api}/health"
        urllib.request.urlopen(url, context=unverified, timeout=10).read()


def test_plain_clients_are_told(secure):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"http://{secure.api}/v1/models", timeout=10)
    assert error.value.code == 400
    assert "https://" in json.loads(error.value.read())["error"]["message"]


def test_ebbs_own_client_over_tls(authorities):
    servers, _ = authorities
    with Server(*tls_flags(servers.issue()), context=servers.context()) as server:
        command = [binary(), "generate", "--server", f"https://{server.address}"]
        command += ["--prompt", "Once", "--max-tokens", "3"]
        done = subprocess.run([*command, "--ca", servers.path], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout, done.stderr
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1 and "certificate" in done.stderr, done.stderr


def test_a_broken_pair_ends_the_start_with_a_sentence(authorities):
    servers, clients = authorities
    (cert, _), (_, key) = servers.issue(), clients.issue()
    command = [binary(), "serve", "--port", "0", "--http-port", "0", "--metrics-port", "0"]
    for flags, word in [
        (["--tls-cert", cert, "--tls-key", key], "cannot be used together"),
        (["--tls-cert", ROOT / "README.md", "--tls-key", key], "--tls-cert"),
        (["--tls-cert", cert, "--tls-key", "/nowhere"], "--tls-key"),
        (["--tls-cert", cert], "--tls-key"),
    ]:
        done = subprocess.run(
            [*map(str, [*command, *flags, *model_flags()])],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0 and word in done.stderr, done.stderr
        assert "panicked" not in done.stderr
