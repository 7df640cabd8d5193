"""Bad input is refused with the field's name, and refusing it harms nobody."""

import math

import grpc
import pytest

from api import greedy

INVALID = grpc.StatusCode.INVALID_ARGUMENT
VOCAB = 49152

BAD = [
    ("prompt", {}),
    ("prompt", {"text": ""}),
    ("prompt", {"token_ids": []}),
    ("token_ids", {"token_ids": [1, VOCAB]}),
    ("prompt", {"token_ids": [5] * 9000}),
    ("chat.messages", {"chat": []}),
    ("chat.messages[1].role", {"chat": [("user", "a"), ("", "b")]}),
    ("timeout_ms", {"text": "x", "timeout_ms": 0}),
    ("min_kv_bits", {"text": "x", "min_kv_bits": 3}),
    ("min_kv_bits", {"text": "x", "min_kv_bits": 32}),
    ("request_id", {"text": "x", "request_id": "x" * 257}),
    ("sampling.temperature", {"text": "x", "sampling": {"temperature": -0.1}}),
    ("sampling.temperature", {"text": "x", "sampling": {"temperature": math.nan}}),
    ("sampling.temperature", {"text": "x", "sampling": {"temperature": math.inf}}),
    ("sampling.top_p", {"text": "x", "sampling": {"top_p": 0.0}}),
    ("sampling.top_p", {"text": "x", "sampling": {"top_p": 1.5}}),
    ("sampling.min_p", {"text": "x", "sampling": {"min_p": 2.0}}),
    ("sampling.repetition_penalty", {"text": "x", "sampling": {"repetition_penalty": 0.0}}),
    ("sampling.repetition_penalty", {"text": "x", "sampling": {"repetition_penalty": 1e-38}}),
    ("sampling.presence_penalty", {"text": "x", "sampling": {"presence_penalty": 5.0}}),
    ("sampling.frequency_penalty", {"text": "x", "sampling": {"frequency_penalty": -5.0}}),
    ("sampling.logit_bias[7]", {"text": "x", "sampling": {"logit_bias": {7: 101.0}}}),
    ("sampling.logit_bias", {"text": "x", "sampling": {"logit_bias": {VOCAB: 1.0}}}),
    ("sampling.max_tokens", {"text": "x", "sampling": {"max_tokens": 0}}),
    ("sampling.max_tokens", {"text": "x", "sampling": {"max_tokens": 1_000_000}}),
    ("sampling.min_tokens", {"text": "x", "sampling": {"max_tokens": 3, "min_tokens": 4}}),
    ("sampling.stop[1]", {"text": "x", "sampling": {"stop": ["a", ""]}}),
    ("sampling.stop", {"text": "x", "sampling": {"stop": ["a"] * 1000}}),
    ("sampling.stop_token_ids[0]", {"text": "x", "sampling": {"stop_token_ids": [VOCAB]}}),
    ("sampling.logprobs", {"text": "x", "sampling": {"logprobs": 1000}}),
    ("sampling.prompt_logprobs", {"text": "x", "sampling": {"prompt_logprobs": 1000}}),
    ("sampling.n", {"text": "x", "sampling": {"n": 0}}),
    ("sampling.n", {"text": "x", "sampling": {"n": 100_000}}),
]


@pytest.mark.parametrize(
    "field, fields", BAD, ids=[f"{i}-{field}" for i, (field, _) in enumerate(BAD)]
)
def test_a_bad_field_is_named(api, field, fields):
    stream = api.stream(api.request(**fields), timeout=10)
    with pytest.raises(grpc.RpcError) as error:
        list(stream)
    assert error.value.code() == INVALID, error.value
    assert error.value.details().startswith(field), error.value.details()
    # The machine-readable form: a google.rpc.BadRequest with the same field.
    details = dict(stream.trailing_metadata())["grpc-status-details-bin"]
    assert b"google.rpc.BadRequest" in details and field.encode() in details


def test_other_methods_name_the_field_too(api):
    for method, fields, field in [
        ("Tokenize", {}, "input"),
        ("Detokenize", {"token_ids": [0, VOCAB]}, "token_ids[1]"),
        ("Abort", {}, "request_id"),
    ]:
        with pytest.raises(grpc.RpcError) as error:
            api.call(method, **fields)
        assert error.value.code() == INVALID and error.value.details().startswith(field)


def test_a_name_is_taken_while_its_request_runs(api):
    sampling = greedy(200, ignore_eos=True)
    first = api.stream(api.request("Once", request_id="mine", sampling=sampling))
    assert next(first).started.request_id == "mine"
    second = api.generate("Once", request_id="mine", sampling=sampling)
    assert (second.status, second.message.split(":")[0]) == (INVALID, "request_id")
    assert api.call("Abort", request_id="mine").aborted
    with pytest.raises(grpc.RpcError) as error:
        list(first)
    assert error.value.code() == grpc.StatusCode.CANCELLED
    assert not api.call("Abort", request_id="mine").aborted


def test_deadlines_of_the_call_and_of_the_request(api, server):
    sampling = greedy(2000, ignore_eos=True)
    late = api.generate("Once", sampling=sampling, timeout_ms=300)
    assert late.status == grpc.StatusCode.DEADLINE_EXCEEDED
    assert late.deltas > 0
    assert (
        api.generate("Once", sampling=sampling, timeout=0.3).status
        == grpc.StatusCode.DEADLINE_EXCEEDED
    )
    server.idle(2)
    assert server.value("vllm:kv_cache_usage_perc") == 0


def test_a_message_above_the_limit_is_refused(api):
    result = api.generate("x" * (5 << 20))
    assert result.status in (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_unknown_methods_are_unimplemented(api):
    call = api.channel.unary_unary("/ebb.v1.Ebb/Nothing")
    with pytest.raises(grpc.RpcError) as error:
        call(b"", timeout=5)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_garbage_is_refused(api):
    call = api.channel.unary_stream("/ebb.v1.Ebb/Generate")
    with pytest.raises(grpc.RpcError) as error:
        list(call(b"\xff\xff\xff\xff", timeout=5))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
