"""What the server tells about itself."""

import pytest
from grpc_health.v1 import health_pb2

from api import SERVICE


def test_reflection_describes_the_service(api):
    assert {SERVICE, "grpc.health.v1.Health"} <= set(api.database.get_services())
    methods = {method.name for method in api.service.methods}
    assert methods == {
        "Generate",
        "Abort",
        "Tokenize",
        "Detokenize",
        "GetModelInfo",
        "GetServerInfo",
    }


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_is_serving(api, service):
    assert api.healthy(service)


def test_health_of_an_unknown_service_is_not_found(api):
    with pytest.raises(Exception) as error:
        api.healthy("nobody")
    assert error.value.code().name == "NOT_FOUND"


def test_health_can_be_watched(api):
    watch = api.health.Watch(health_pb2.HealthCheckRequest(), timeout=5)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_model_info(api):
    model = api.call("GetModelInfo")
    assert model.name and model.description
    assert model.vocab_size == 49152
    assert model.max_context == 8192
    assert model.has_chat_template
    assert 2 in model.eos_token_ids
    # 30 layers, K and V, 3 heads of 64 numbers of 2 bytes.
    assert model.kv_bytes_per_token == 30 * 2 * 3 * 64 * 2


def test_server_info(api):
    info = api.call("GetServerInfo")
    assert info.version and info.accepting and info.uptime_seconds > 0
    assert 0 < info.kv_cache.bytes_total <= 256 << 20
    assert info.limits.max_running > 0 and info.limits.max_waiting > 0
    assert info.device


def test_probes(server):
    assert server.get("/healthz")[0] == 200
    assert server.get("/readyz")[0] == 200
    assert server.get("/nowhere")[0] == 404


@pytest.mark.parametrize(
    "text", ["The capital of France is", "naïve café – 東京 🤖🦀\n\n\tx", " leading", ""]
)
def test_tokens_and_back(api, text):
    ids = api.call("Tokenize", text=text, add_special_tokens=False).token_ids
    assert api.call("Detokenize", token_ids=ids).text == text


def test_chat_is_tokenised_by_the_template(api, golden):
    case = next(case for case in golden if case["kind"] == "chat")
    question = "What is the capital of Japan? Answer in one sentence."
    ids = api.call("Tokenize", chat={"messages": [{"role": "user", "content": question}]}).token_ids
    assert list(ids) == case["prompt_ids"]
    assert api.call("Detokenize", token_ids=ids).text == case["prompt"]
    assert (
        "<|im_start|>" not in api.call("Detokenize", token_ids=ids, skip_special_tokens=True).text
    )
