"""API keys: official clients with the right key, a wrong one and none; limits; logs."""

import http.client
import json
import os
import subprocess
import time

import anthropic
import grpc
import openai
import pytest

from api import Api, greedy
from server import Server, binary, eventually

CODE = grpc.StatusCode
NAME = "SmolLM2-135M-Instruct"
KEY, OTHER, WRONG = "sk-HUSH-first", "sk-HUSH-second", "sk-HUSH-wrong"
CHAT = [{"role": "user", "content": "What is the capital of Japan? Answer in one sentence."}]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# of the tests\n{OTHER} name=second max-concurrency=1\n")
    return path


@pytest.fixture(scope="module")
def guarded(keys):
    """A server that asks for keys: one from the environment, others from a file."""
    origins = ["--allowed-origins", '["https://chat.example.com"]']
    with Server("--api-key-file", keys, *origins, env={"EBB_API_KEY": KEY}) as server:
        yield server


def client(server, key, **options):
    url = f"http://{server.api}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, **options)


def claude(server, **options):
    return anthropic.Anthropic(base_url=f"http://{server.api}", max_retries=0, **options)


def answer(client):
    return client.chat.completions.create(model=NAME, messages=CHAT, temperature=0, max_tokens=20)


def test_openais_client(guarded):
    for key in (KEY, OTHER):
        with client(guarded, key) as right:
            assert answer(right).choices[0].message.content == "The capital of Japan is Tokyo."
            assert right.models.list().data[0].id == NAME
    for key in (WRONG, KEY[:-1], "none"):
        with client(guarded, key) as wrong:
            for call in (lambda: answer(wrong), lambda: wrong.models.list()):
                with pytest.raises(openai.AuthenticationError) as error:
                    call()
                assert error.value.code == "invalid_api_key" and "HUSH" not in str(error.value)
    status, body, headers = guarded.ask("/v1/models")
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert "Bearer KEY" in body["error"]["message"] and headers["WWW-Authenticate"] == "Bearer"


def test_anthropics_client(guarded):
    options = {"model": NAME, "max_tokens": 20, "messages": CHAT}
    for right in ({"api_key": KEY}, {"auth_token": KEY, "api_key": None}):
        with claude(guarded, **right) as client:
            assert client.messages.create(**options).content[0].text
    with claude(guarded, api_key=WRONG) as client:
        for call in (client.messages.create, client.messages.stream):
            with pytest.raises(anthropic.AuthenticationError) as error, call(**options):
                pass
            assert error.value.body["error"]["type"] == "authentication_error"


def test_grpc(guarded):
    for metadata in ([("authorization", f"Bearer {KEY}")], [("x-api-key", OTHER)]):
        api = Api(guarded.address, metadata=metadata)
        assert api.generate("Once", sampling=greedy(4)).status == CODE.OK
        assert api.call("GetModelInfo").name == NAME
        api.close()
    for metadata in ([], [("authorization", f"Bearer {WRONG}")], [("x-api-key", "")]):
        api = Api(guarded.address, metadata=metadata)
        result = api.generate("Once", sampling=greedy(4))
        assert result.status == CODE.UNAUTHENTICATED and "API key" in result.message
        with pytest.raises(grpc.RpcError) as error:
            api.call("Tokenize", text="Once")
        assert error.value.code() == CODE.UNAUTHENTICATED
        # Balancers and people who look around have no keys.
        assert api.healthy() and api.healthy("ebb.v1.Ebb")
        api.close()


def test_ebbs_own_client(guarded):
    command = [binary(), "generate", "--server", f"http://{guarded.address}", "--prompt", "Once"]
    command += ["--max-tokens", "3"]
    for more, variable, code in [
        (["--api-key", KEY], "", 0),
        ([], KEY, 0),
        (["--api-key", WRONG], KEY, 1),
    ]:
        env = {**os.environ, "EBB_API_KEY": variable} if variable else None
        done = subprocess.run([*command, *more], capture_output=True, text=True, env=env)
        assert done.returncode == code, done.stderr
        assert "HUSH" not in done.stderr
    assert "API key" in done.stderr


def test_probes_and_metrics_need_no_key(guarded):
    for path in ("/health", "/ping", "/livez", "/readyz", "/healthz", "/metrics", "/version"):
        assert guarded.status(path) == 200, path
    assert guarded.get("/metrics")[0] == guarded.get("/readyz")[0] == 200
    for path in ("/v1/models", f"/v1/models/{NAME}"):
        assert guarded.status(path) == 401, path


def test_a_key_of_one_call_at_once(guarded):
    with client(guarded, OTHER) as one, client(guarded, KEY) as free:
        extra = {"ignore_eos": True}
        options = {"model": NAME, "prompt": "Once", "max_tokens": 400, "extra_body": extra}
        stream = one.completions.create(stream=True, **options)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as error:
            answer(one)
        assert error.value.code == "rate_limit_exceeded"
        assert error.value.response.headers["Retry-After"] == "1"
        api = Api(guarded.address, metadata=[("x-api-key", OTHER)])
        assert api.generate("Once", sampling=greedy(2)).status == CODE.RESOURCE_EXHAUSTED
        assert answer(free).choices
        stream.close()

        def again():
            return api.generate("Once", sampling=greedy(2)).status == CODE.OK

        eventually(again, 10, "the place is given back")
        api.close()


def test_pages_of_an_allowed_origin(guarded):
    def preflight(origin):
        connection = http.client.HTTPConnection(guarded.api, timeout=10)
        headers = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        }
        connection.request("OPTIONS", "/v1/chat/completions", headers=headers)
        reply = connection.getresponse()
        reply.read()
        connection.close()
        return reply.status, reply.headers["Access-Control-Allow-Origin"]

    page = "https://chat.example.com"
    assert preflight(page) == (200, page)
    assert preflight("https://other.example.com")[1] is None


def test_a_changed_file_is_taken_over(guarded, keys):
    before, new = keys.read_text(), "sk-HUSH-third"

    def status(key):
        return guarded.ask("/v1/models", Authorization=f"Bearer {key}")[0]

    keys.write_text("sk-HUSH-third sk-HUSH-two-words\n")
    eventually(lambda: any("line 1" in line for line in guarded.log), 10, "the complaint")
    assert (status(OTHER), status(new)) == (200, 401)
    keys.write_text(f"{new}\n")
    eventually(lambda: status(new) == 200, 10, "the new key")
    assert (status(OTHER), status(KEY)) == (401, 200)
    keys.write_text(before)
    eventually(lambda: status(OTHER) == 200, 10, "the old key")


def test_requests_and_tokens_a_minute(tmp_path):
    path = tmp_path / "keys"
    path.write_text("requests requests-per-minute=3\ntokens tokens-per-minute=40\n")
    with Server("--api-key-file", path) as server:
        body = {"prompt": "Once", "max_tokens": 30, "ignore_eos": True}
        api = Api(server.address, metadata=[("x-api-key", "requests")])
        for _ in range(2):
            headers = {"Authorization": "Bearer requests"}
            assert server.ask("/v1/completions", body, **headers)[0] == 200
        assert api.generate("Once", sampling=greedy(2)).status == CODE.OK
        assert api.generate("Once", sampling=greedy(2)).status == CODE.RESOURCE_EXHAUSTED
        for expected in (200, 200, 429):
            headers = {"x-api-key": "tokens"}
            status, answer, headers = server.ask("/v1/completions", body, **headers)
            assert status == expected, answer
        assert 1 <= int(headers["Retry-After"]) <= 60
        assert "40 tokens a minute" in answer["error"]["message"]
        api.close()


PROMPT, BYTES = "MARK-the-prompt-of-a-client", b"MARK-the-prompt-of-a-client"


def provoke(server, api):
    """Calls of every kind, answered and refused, with a marked prompt; the texts answered."""
    right = {"Authorization": f"Bearer {KEY}"}
    wrong = {"Authorization": f"Bearer {WRONG}"}
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12}
    fail = {"messages": [{"role": "user", "content": f"fail {PROMPT}"}], "max_tokens": 12}
    texts = []
    for path, body in [
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 12, "echo": True}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", fail),
        ("/v1/messages", chat),
        ("/v1/messages", fail),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 12}),
        ("/tokenize", {"prompt": PROMPT}),
        ("/detokenize", {"tokens": [504, 3575, 253]}),
        ("/v1/chat/completions", {**chat, "model": f"no-{PROMPT}"}),
        ("/v1/chat/completions", {**chat, "temperature": PROMPT}),
        ("/v1/chat/completions", {**chat, "stop": [PROMPT] * 1000}),
        ("/v1/completions", {"prompt": PROMPT * 10_000, "max_tokens": 12}),
        ("/v1/completions", b'{"prompt": "' + BYTES),
        ("/v1/completions", b'{"prompt": "' + BYTES + b'" nonsense}'),
        ("/v1/completions", b'{"prompt": {"' + BYTES + b'": 1}}'),
        ("/v1/embeddings", {"input": PROMPT}),
        ("/v1/nothing", {"input": PROMPT}),
    ]:
        for headers in (right, wrong, {"x-api-key": WRONG}, {}):
            status, answer, _ = server.ask(path, body, **headers)
            if headers is right and status == 200 and path == "/v1/chat/completions":
                texts.append(answer["choices"][0]["message"]["content"])
    streamed = client(server, KEY).completions.create(
        model=NAME, prompt=PROMPT, max_tokens=12, stream=True
    )
    texts.append("".join(chunk.choices[0].text for chunk in streamed))

    for metadata in ([("authorization", f"Bearer {KEY}")], [("x-api-key", WRONG)]):
        api.metadata = metadata
        result = api.generate(PROMPT, sampling=greedy(12))
        if result.status == CODE.OK:
            texts.append(result[0].text)
        api.generate(chat=[("user", PROMPT)], sampling=greedy(12))
        api.generate(chat=[("user", f"fail {PROMPT}")], sampling=greedy(12))
        api.generate(PROMPT, sampling=greedy(12, stop=[PROMPT] * 1000))
        api.generate(PROMPT * 10_000, sampling=greedy(12))
        raw = api.channel.unary_stream("/ebb.v1.Ebb/Generate")
        for broken in (b"\x0a\xff\xff" + BYTES, b"\xff" + BYTES, BYTES):
            with pytest.raises(grpc.RpcError):
                list(raw(broken, metadata=metadata, timeout=10))
    return texts


def test_no_prompt_answer_or_key_is_logged(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.content.startswith('fail') %}"
        "{{ raise_exception('no: ' ~ m.content) }}{% endif %}{{ m.content }}\n{% endfor %}"
    )
    path = tmp_path / "keys"
    path.write_text(f"{OTHER}\n")
    flags = ["--log", "trace", "--api-key", KEY, "--api-key-file", path]
    with Server(*flags, "--chat-template", template) as server:
        api = Api(server.address)
        texts = provoke(server, api)
        path.write_text(f"{OTHER} {WRONG}\n")
        eventually(lambda: any("line 1" in line for line in server.log), 10, "the complaint")
        api.close()
        server.signal()
        assert server.exit_code() == 0
        time.sleep(0.2)
        assert len(server.log) > 100, "nothing was logged"
        texts = [text.strip() for text in texts if len(text.strip()) > 10]
        assert texts
        texts += [json.dumps(text)[1:-1] for text in texts]
        for mark in (PROMPT, "HUSH", "MARK", *texts):
            found = [line[:300] for line in server.log if mark in line]
            assert not found, (mark, found[:5])
