"""What /metrics exposes is what dashboards made for vLLM read."""

import json
import re

from prometheus_client.parser import text_string_to_metric_families

from api import greedy
from server import Server

GAUGES = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
]
COUNTERS = [
    "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens",
    "prompt_tokens_by_source", "prompt_tokens_cached", "generation_tokens", "request_success",
    "admission_rejections",
]  # fmt: skip
LATENCY = [
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    120,
    240,
    480,
    960,
    1920,
    7680,
]
HISTOGRAMS = {
    "request_prompt_tokens": None,
    "request_generation_tokens": None,
    "request_max_num_generation_tokens": None,
    "request_params_max_tokens": None,
    "request_prefill_kv_computed_tokens": None,
    "iteration_tokens_total": [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
    "request_params_n": [1, 2, 5, 10, 20],
    "request_num_preemptions": [1, 2, 3, 4, 5, 10, 20],
    "time_to_first_token_seconds": [
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
        40, 80, 160, 640, 2560
    ],
    "inter_token_latency_seconds": [
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
        80
    ],
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
}  # fmt: skip


def families(server):
    status, text = server.get("/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_names_types_labels_and_buckets_are_vllms(api, server):
    model = api.call("GetModelInfo").name
    assert api.generate("Hello", sampling=greedy(3)).status.name == "OK"
    found = families(server)
    for name in GAUGES:
        assert found[f"vllm:{name}"].type == "gauge", name
    for name in COUNTERS:
        family = found[f"vllm:{name}"]
        assert family.type == "counter", name
        assert all(sample.name == f"vllm:{name}_total" for sample in family.samples), name
    for name, bounds in HISTOGRAMS.items():
        family = found[f"vllm:{name}"]
        assert family.type == "histogram", name
        have = [
            float(sample.labels["le"])
            for sample in family.samples
            if sample.name.endswith("_bucket")
        ]
        assert have[-1] == float("inf")
        if bounds:
            assert have[:-1] == bounds, name
    for family in found.values():
        assert family.documentation, family.name
        for sample in family.samples:
            assert sample.labels["model_name"] == model and sample.labels["engine"] == "0", sample


def test_a_request_is_counted_and_timed(api, server):
    server.idle()
    before = server.metrics()
    result = api.generate("Count me in, please.", sampling=greedy(7, ignore_eos=True))
    server.idle()
    after = server.metrics()

    def grew(name, **labels):
        key = (name, frozenset(labels.items()))
        return after[key] - before.get(key, 0.0)

    assert grew("vllm:prompt_tokens_total") == result.started.prompt_tokens
    assert grew("vllm:generation_tokens_total") == 7
    assert grew("vllm:request_success_total", finished_reason="length") == 1
    assert grew("vllm:time_to_first_token_seconds_count") == 1
    assert grew("vllm:inter_token_latency_seconds_count") == 6
    assert grew("vllm:request_generation_tokens_sum") == 7
    assert grew("ebb:requests_ended_total", outcome="completed") == 1
    assert grew("ebb:rpcs_total", method="Generate", code="OK") == 1
    whole = grew("vllm:e2e_request_latency_seconds_sum")
    parts = grew("vllm:request_queue_time_seconds_sum") + grew(
        "vllm:request_inference_time_seconds_sum"
    )
    assert 0 < parts <= whole < 30
    inference = grew("vllm:request_inference_time_seconds_sum")
    split = grew("vllm:request_prefill_time_seconds_sum") + grew(
        "vllm:request_decode_time_seconds_sum"
    )
    assert abs(inference - split) < 1e-6


def weights(server):
    """Bytes by format, as the metric tells them and as the log does, in GiB."""
    told = {
        dict(labels)["format"]: value
        for (name, labels), value in server.metrics().items()
        if name == "ebb:weights_bytes"
    }
    lines = [json.loads(line).get("message", "") for line in server.log if line.startswith("{")]
    found = [re.fullmatch(r" *([0-9.]+) GiB  weights, (.*)", line) for line in lines]
    return told, {line[2]: float(line[1]) for line in found if line}


def test_weights_are_told_by_format_in_the_log_and_as_a_metric():
    """Once each, and those of a file of 4-bit blocks are about as large as it."""
    sizes = {}
    for how in ("packed", "exact"):
        with Server("--weights", how) as server:
            told, logged = weights(server)
            assert told.keys() == logged.keys()
            for name, size in told.items():
                assert abs(size / 2**30 - logged[name]) <= 0.005 + 1e-9, name
            sizes[how] = told
    assert sizes["exact"].keys() == {"bf16"}
    assert "int4" in sizes["packed"]
    assert 2 * sum(sizes["packed"].values()) < sizes["exact"]["bf16"]
