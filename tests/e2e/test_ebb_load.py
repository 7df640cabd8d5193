"""`ebb-load` against a live server: its summary against its own records, and its records against
the server's count.
"""

import collections
import json
import math
import os
import pathlib
import subprocess

import pytest

from server import Server
from server import binary as program


def binary():
    """Path of the load generator."""
    return program("ebb-load", "EBB_LOAD_BIN")


def ebb_load(*flags, seconds=120):
    command = [str(part) for part in (binary(), *flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


class Run:
    """One run: what it printed and wrote."""

    def __init__(self, server, out, *flags, protocol="ebb"):
        address = server.address if protocol == "ebb" else server.api
        target = ["--protocol", protocol, "--target", address]
        self.done = ebb_load(*flags, *target, "--out", out)
        assert self.done.returncode == 0, self.done.stderr
        self.out = out
        self.summary = json.loads((out / "summary.json").read_text())
        self.records = [
            json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()
        ]
        self.stages = self.summary["stages"]

    def of(self, stage):
        return [record for record in self.records if record["stage"] == stage]


both = pytest.mark.parametrize("protocol", ["ebb", "openai"])


def gaps(record):
    """Milliseconds between tokens; tokens that came together share the time."""
    arrivals = record["arrivals_us"]
    for (before, _), (at, tokens) in zip(arrivals, arrivals[1:]):
        yield from [(at - before) / tokens / 1000] * tokens


def tpot(record):
    arrivals = record["arrivals_us"]
    more = sum(tokens for _, tokens in arrivals[1:])
    return (arrivals[-1][0] - arrivals[0][0]) / more / 1000 if more else None


def rank(values, share):
    """By nearest rank."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def check_quantiles(found, values):
    if not values:
        assert found is None
        return
    assert found["count"] == len(values)
    expected = {
        "p50": rank(values, 0.5),
        "p90": rank(values, 0.9),
        "p99": rank(values, 0.99),
        "max": max(values),
    }
    expected["mean"] = sum(values) / len(values)
    for name, value in expected.items():
        # Three digits, of whole microseconds.
        assert found[name] == pytest.approx(value, rel=2e-3, abs=2e-3), name


def check_stage(stage, records, slo):
    """Everything in the summary, computed again from the records."""
    assert stage["requests"] == len(records)
    assert stage["outcomes"] == collections.Counter(record["outcome"] for record in records)
    begin = stage["begin_s"] * 1e6
    seconds = (max(record["end_us"] for record in records) - begin) / 1e6
    assert stage["seconds"] == pytest.approx(seconds)
    complete = [record for record in records if record["outcome"] == "OK"]
    steady = [record for record in complete if record["class"] == "steady"]
    good = [
        record
        for record in steady
        if record["arrivals_us"][0][0] - record["intended_us"] <= slo["ttft_ms"] * 1000
        and (tpot(record) or 0) <= slo["itl_ms"]
    ]
    tokens = {id(record): sum(n for _, n in record["arrivals_us"]) for record in records}
    answered = [record for record in records if record["arrivals_us"]]
    for name, value in {
        "requests_per_second": len(complete) / seconds,
        "input_tokens_per_second": sum(record["prompt_tokens"] for record in answered) / seconds,
        "output_tokens_per_second": sum(tokens.values()) / seconds,
        "goodput": len(good) / seconds,
        "good_tokens_per_second": sum(tokens[id(record)] for record in good) / seconds,
        "good_share": len(good) / sum(record["class"] == "steady" for record in records),
    }.items():
        assert stage[name] == pytest.approx(value), name
    first = [(record["arrivals_us"][0][0] - record["intended_us"]) / 1000 for record in steady]
    check_quantiles(stage["ttft_ms"], first)
    check_quantiles(stage["itl_ms"], [gap for record in steady for gap in gaps(record)])
    check_quantiles(
        stage["tpot_ms"], [tpot(record) for record in steady if tpot(record) is not None]
    )
    check_quantiles(
        stage["e2e_ms"], [(record["end_us"] - record["intended_us"]) / 1000 for record in steady]
    )
    refused = [record for record in records if record["outcome"] == "RESOURCE_EXHAUSTED"]
    check_quantiles(
        stage["refusal_ms"],
        [(record["end_us"] - record["intended_us"]) / 1000 for record in refused],
    )
    assert stage["lowest_kv_bits"] == min(record["lowest_kv_bits"] for record in complete)
    for record in complete:
        assert tokens[id(record)] == record["output_tokens"] == record["max_tokens"]
        assert record["ttft_ms"] == pytest.approx(
            (record["arrivals_us"][0][0] - record["intended_us"]) / 1000
        )
        assert record["intended_us"] <= record["sent_us"] <= record["arrivals_us"][0][0]
        assert record["arrivals_us"] == sorted(record["arrivals_us"])
        assert record["arrivals_us"][-1][0] <= record["end_us"]


@both
def test_the_summary_is_that_of_the_records(server, tmp_path, protocol):
    flags = [
        "--concurrency",
        "1,3",
        "--duration",
        "2",
        "--prompt-tokens",
        "uniform:20..60",
        "--output-tokens",
        "12",
    ]
    run = Run(server, tmp_path, "closed", *flags, protocol=protocol)
    assert [stage["label"] for stage in run.stages] == ["1 client", "3 clients"]
    for index, stage in enumerate(run.stages):
        check_stage(stage, run.of(index), run.summary["slo"])
        assert stage["failed_share"] == 0 and stage["mean_kv_bits"] == 16
    # The table on the terminal has the same figures.
    line = next(line for line in run.done.stdout.splitlines() if line.startswith("3 clients"))
    assert line.split()[2] == str(run.stages[1]["requests"])
    html = (tmp_path / "report.html").read_text()
    assert html.count("<svg") >= 2 * 6 and "http://www" not in html and "<script" not in html
    same = ebb_load("compare", tmp_path, tmp_path, "--fail-if-worse")
    assert same.returncode == 0 and "WORSE" not in same.stdout and "TTFT p99" in same.stdout


@both
def test_clients_that_cancel_read_slowly_and_converse_are_accounted_for(server, tmp_path, protocol):
    server.idle()
    counters = ("ebb:requests_received_total", "ebb:requests_ended_total")
    before = [server.total(name) for name in counters]
    flags = "--rate 5 --duration 4 --prompt-tokens 30 --output-tokens 25"
    flags += " --turns 2 --prefix-tokens 140 --seed 5"
    flags += " --cancel 0.3 --slow 0.3 --slow-pause-ms 15 --warmup 0"
    run = Run(server, tmp_path, "open", *flags.split(), protocol=protocol)
    records = run.records
    check_stage(run.stages[0], records, run.summary["slo"])
    names = ("steady", "cancel", "slow")
    by_class = {name: [record for record in records if record["class"] == name] for name in names}
    assert all(len(records) >= 3 for records in by_class.values()), "the mix has every class"
    assert {record["outcome"] for record in by_class["steady"] + by_class["slow"]} == {"OK"}
    assert {record["outcome"] for record in by_class["cancel"]} == {"CANCELLED_BY_CLIENT"}
    assert all(record["output_tokens"] < 25 for record in by_class["cancel"])
    for record in by_class["slow"]:
        assert record["end_us"] - record["sent_us"] >= 24 * 15_000
    # The prefix is computed once, and later turns find what was said before.
    second = [record for record in records if record["turn"] == 1]
    assert len(second) == len(by_class["steady"] + by_class["slow"]) / 2
    assert all(record["prompt_tokens"] == 140 + 30 + 25 + 30 for record in second)
    assert all(record["cached_tokens"] >= 128 for record in second)
    server.idle()
    received, ended = [server.total(name) - value for name, value in zip(counters, before)]
    assert received == ended == len(records)
    assert server.value("vllm:kv_cache_usage_perc") == 0


def test_a_trace_is_replayed_with_its_lengths(server, tmp_path):
    trace = tmp_path / "trace.csv"
    lengths = [(40, 5), (90, 12), (9000, 3), (15, 1)]
    rows = [f"{100 * index},{prompt},{answer}" for index, (prompt, answer) in enumerate(lengths)]
    trace.write_text("\n".join(["arrival_ms,prompt,generated", *rows]) + "\n")
    run = Run(
        server, tmp_path / "out", "replay", "--trace", trace, "--speed", "0.5", "--warmup", "0"
    )
    records = sorted(run.records, key=lambda record: record["intended_us"])
    assert [(record["prompt_tokens"], record["max_tokens"]) for record in records] == [
        (40, 5),
        (90, 12),
        (15, 1),
    ]
    assert run.stages[0]["unfit"] == 1
    first = records[0]["intended_us"]
    times = [record["intended_us"] - first for record in records]
    assert times == pytest.approx([0, 200_000, 600_000], abs=2)


@both
def test_overload_is_refused_and_counted(tmp_path, protocol):
    with Server("--max-running", "1", "--max-waiting", "2") as server:
        flags = "--rate 40 --duration 2 --arrivals constant --prompt-tokens 20 --output-tokens 40"
        run = Run(server, tmp_path, "open", *flags.split(), protocol=protocol)
        outcomes = run.stages[0]["outcomes"]
        assert set(outcomes) == {"OK", "RESOURCE_EXHAUSTED"}, outcomes
        check_stage(run.stages[0], run.records, run.summary["slo"])
        assert run.stages[0]["refusal_ms"]["p50"] < 50
        rejected = server.value("vllm:admission_rejections_total", reason="queue_full")
        assert rejected == outcomes["RESOURCE_EXHAUSTED"]


def test_a_server_elsewhere_is_left_alone():
    refused = ebb_load("closed", "--target", "http://192.0.2.1:50051")
    assert refused.returncode == 1 and "--allow-remote" in refused.stderr


def test_one_thread_receives_50000_tokens_a_second():
    # For each second that the thread computes, whatever else runs on the machine.
    able = ebb_load("selftest", "--duration", "2", "--at-least", "50000")
    assert able.returncode == 0, able.stdout + able.stderr
