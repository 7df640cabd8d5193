"""More requests than the KV memory holds at 16 bit: what shrinking buys, against throwing requests
out.

EBB_PRESSURE=full runs 32 requests in the memory of five instead of eight in that of two;
EBB_PRESSURE_OUT=FILE writes the figures as CSV.
"""

import concurrent.futures
import csv
import os
import random
import threading
import time

import grpc
import pytest

from api import Api, Result, collect, greedy
from server import Server

FULL = os.environ.get("EBB_PRESSURE") == "full"
REQUESTS, ROOM = (32, 5) if FULL else (8, 2)
PROMPT, ANSWER = 1300, 200
# SmolLM2-135M: 30 layers, K and V, 3 heads of 64, two bytes; sub-blocks of 16 tokens.
BYTES_PER_SUB_BLOCK = 16 * 30 * 2 * 3 * 64 * 2
KV_MEMORY = ROOM * -(-(PROMPT + ANSWER - 1) // 16) * BYTES_PER_SUB_BLOCK


def prompts():
    """Of different texts; the last repeats an early one."""
    rng = random.Random(5)
    texts = [[rng.randrange(1000, 40000) for _ in range(PROMPT)] for _ in range(REQUESTS - 1)]
    return [*texts, texts[1]]


class Load:
    """All requests at once against one server; the last one insists on 16 bit."""

    def __init__(self, mode):
        self.mode = mode

    def run(self):
        with Server("--kv-mode", self.mode, kv_memory=f"{KV_MEMORY}") as server:
            api = Api(server.address)
            done = threading.Event()
            watcher = threading.Thread(target=self.watch, args=(server, done))
            began = time.monotonic()
            watcher.start()
            with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
                calls = []
                for index, prompt in enumerate(prompts()):
                    fields = {"min_kv_bits": 16} if index == REQUESTS - 1 else {}
                    calls.append(pool.submit(self.call, api, prompt, fields))
                    # In this order.
                    time.sleep(0.02)
                self.results = [call.result() for call in calls]
            self.seconds = time.monotonic() - began
            done.set()
            watcher.join()
            server.idle()
            self.metrics = server.metrics()
            self.info = api.call("GetServerInfo")
            api.close()
        return self

    def call(self, api, prompt, fields):
        sent = time.monotonic()
        request = api.request(token_ids=prompt, sampling=greedy(ANSWER, ignore_eos=True), **fields)
        result = collect(api.stream(request, timeout=1800), Result())
        result.first_token = result.arrivals[0] - sent if result.arrivals else None
        return result

    def watch(self, server, done):
        self.resident = 0
        while not done.wait(0.05):
            self.resident = max(self.resident, int(server.value("vllm:num_requests_running")))

    def value(self, name, **labels):
        return self.metrics.get((name, frozenset(labels.items())), 0.0)

    def figures(self):
        first = sorted(result.first_token for result in self.results)
        bits = [result[0].finished.mean_kv_bits for result in self.results]
        steps = self.value("ebb:step_time_seconds_count", phase="shrink")
        return {
            "mode": self.mode,
            "requests": REQUESTS,
            "kv_bytes": KV_MEMORY,
            "resident_max": self.resident,
            "seconds": round(self.seconds, 2),
            "output_tokens_per_second": round(REQUESTS * ANSWER / self.seconds, 1),
            "ttft_median_s": round(first[len(first) // 2], 2),
            "ttft_max_s": round(first[-1], 2),
            "preemptions": int(self.value("vllm:num_preemptions_total")),
            "tokens_computed": int(self.value("ebb:tokens_computed_total")),
            "tokens_thrown_away": int(self.value("ebb:tokens_thrown_away_total")),
            "mean_bits_read": round(sum(bits) / len(bits), 2),
            "shrunk_mib": round(self.value("ebb:kv_shrunk_bytes_total") / 2**20, 1),
            "shrink_ms_per_step_with_shrinks": round(
                1000 * self.value("ebb:step_time_seconds_sum", phase="shrink") / max(steps, 1), 2
            ),
        }


@pytest.fixture(scope="module")
def loads():
    loads = {mode: Load(mode).run() for mode in ("preempt-only", "progressive")}
    figures = [load.figures() for load in loads.values()]
    for line in figures:
        print(line)
    if out := os.environ.get("EBB_PRESSURE_OUT"):
        with open(out, "w", newline="") as file:
            writer = csv.DictWriter(file, figures[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(figures)
    return loads


def test_shrinking_keeps_three_times_as_many_requests_resident(loads):
    assert loads["progressive"].resident >= 3 * loads["preempt-only"].resident


def test_nothing_is_preempted_and_no_token_is_computed_twice(loads):
    load = loads["progressive"]
    assert load.value("vllm:num_preemptions_total") == 0
    assert load.value("ebb:tokens_thrown_away_total") == 0
    expected = sum(PROMPT - result.started.cached_tokens + ANSWER - 1 for result in load.results)
    assert load.value("ebb:tokens_computed_total") == expected


def test_every_answer_is_whole_and_tells_its_width(loads):
    for result in loads["preempt-only"].results:
        assert result[0].finished.lowest_kv_bits == 16 and result[0].finished.mean_kv_bits == 16
    for result in loads["progressive"].results:
        finished = result[0].finished
        assert finished.completion_tokens == ANSWER
        assert 2 <= finished.lowest_kv_bits <= 16 and 2 < finished.mean_kv_bits <= 16
    lowest = [result[0].finished.lowest_kv_bits for result in loads["progressive"].results]
    assert min(lowest) < 16, "the memory was not short"


def test_a_request_for_16_bit_answers_as_on_an_unloaded_server(loads):
    asked = loads["progressive"].results[-1]
    degraded = loads["progressive"].results[1]
    assert asked[0].finished.lowest_kv_bits == 16 and asked[0].finished.mean_kv_bits == 16
    assert degraded[0].finished.lowest_kv_bits < 16, "its twin was to be degraded"
    with Server() as server:
        api = Api(server.address)
        alone = api.generate(
            token_ids=prompts()[-1], sampling=greedy(ANSWER, ignore_eos=True), timeout=300
        )
        api.close()
    assert asked[0].token_ids == alone[0].token_ids


def test_a_limit_takes_bits_though_there_is_room():
    limit = KV_MEMORY // ROOM // 2
    with Server(
        "--kv-mode", "progressive", "--kv-live-limit", f"{limit}", kv_memory=f"{2 * KV_MEMORY}"
    ) as server:
        api = Api(server.address)
        result = api.generate(
            token_ids=prompts()[0], sampling=greedy(50, ignore_eos=True), timeout=300
        )
        precision = api.call("GetServerInfo").kv_precision
        api.close()
    finished = result[0].finished
    assert finished.completion_tokens == 50
    assert (
        finished.lowest_kv_bits < 16
        and precision.shrinks_live > 0
        and precision.shrinks_cached == 0
    )


def test_the_server_tells_what_it_did(loads):
    precision = loads["progressive"].info.kv_precision
    assert precision.mode == "progressive" and 2 < precision.floor_bits < 4
    assert (
        precision.shrinks_live > 0 and precision.shrunk_bytes > 0 and precision.shrink_failures == 0
    )
    assert precision.preemptions_avoided > 0
    assert 0 < precision.schedule_steps_max <= precision.schedule_steps
    # What the prefix cache keeps has shrunk as well.
    cached = {use.format: use.bytes for use in precision.formats}
    assert sum(cached.values()) <= KV_MEMORY and set(cached) - {"f16"}
    assert precision.stored_bits < 16
    load = loads["progressive"]
    assert load.value("ebb:kv_format_bytes", format="int8") == cached.get("int8", 0)
    assert load.value("ebb:kv_shrinks_total", holder="requests") == precision.shrinks_live
    # With nobody there, only the prefix cache keeps anything; what it takes is codes, metadata and
    # waste.
    kept = {name: load.value("ebb:kv_cached_format_bytes", format=name) for name in cached}
    assert kept == cached
    taken = load.value("ebb:kv_bytes", state="cached")
    assert taken == sum(cached.values()) + load.value("ebb:kv_waste_bytes")
    assert load.value("ebb:kv_shrinkable_bytes") == 0, "nobody holds anything"
    low, high = (load.value("ebb:kv_watermark_bytes", mark=mark) for mark in ("low", "high"))
    assert 0 < low < high < load.value("ebb:kv_pool_bytes")
    assert load.value("ebb:max_requests", state="running") == 256
    assert load.value("ebb:request_mean_kv_bits_count") == REQUESTS


@pytest.mark.parametrize("kv_memory, choices", [("25MiB", 10), ("27MiB", 10), ("30MiB", 12)])
def test_more_choices_than_fit_take_turns(kv_memory, choices):
    """They share a prompt, and then all fill its last block at once."""
    with Server(kv_memory=kv_memory) as server:
        api = Api(server.address)
        prompt = [1000 + index for index in range(120)]
        sampling = greedy(14, ignore_eos=True, n=choices)
        result = api.generate(token_ids=prompt, sampling=sampling)
        assert result.status == grpc.StatusCode.OK, result.message
        assert len(result.choices) == choices
        answers = {tuple(answer.token_ids) for answer in result.choices.values()}
        assert {len(answer) for answer in answers} == {14}
        server.idle()
        assert server.value("vllm:num_preemptions_total") == 0
        assert not [line for line in server.log if "invalid step" in line]
        api.close()
