#!/usr/bin/env python3
"""The promises that need a GPU: rows 8, and of 2 and 3 what other clients notice.

    EBB_BIN=… EBB_LOAD_BIN=… tests/reliability/run gpu [--record FILE]

The model is benches/data/llama-3.1-8b with random weights.
"""

import argparse
import contextlib
import csv
import os
import pathlib
import subprocess
import tempfile
import time

import grpc
from clients import ROOT, Api, Link, Server, binary, greedy, load

MODEL = ROOT / "benches/data/llama-3.1-8b"
FLAGS = ["--load-format", "dummy", "--model", MODEL, "--device", "cuda"]
FIGURES = []


def record(row, what, value, unit, target):
    value = f"{value:.4g}" if isinstance(value, float) else value
    print(f"row {row}: {what}: {value} {unit} (target {target})", flush=True)
    FIGURES.append([row, "full", what, value, unit, target, time.strftime("%Y-%m-%d")])


def row_8_a_lost_device_ends_the_process():
    folder = pathlib.Path(tempfile.mkdtemp())
    library, trigger = folder / "fail_cuda.so", folder / "now"
    source = pathlib.Path(__file__).with_name("fail_cuda.c")
    library = os.environ.get("EBB_FAIL_CUDA", library)
    if not pathlib.Path(library).exists():
        command = ["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"]
        subprocess.run(command, check=True)
    limit = f"export LD_PRELOAD={library} EBB_FAIL_FILE={trigger}"
    with Server(*FLAGS, kv_memory="4GiB", limit=limit) as server:
        api = Api(server.address)
        streams = []
        for i in range(8):
            request = api.request(f"Tale {i}", sampling=greedy(4000, ignore_eos=True))
            streams.append(api.stream(request))
            next(streams[-1])
        began = time.monotonic()
        trigger.touch()
        ends = [collect_rest(stream) for stream in streams]
        code = server.exit_code(60)
        took = time.monotonic() - began
        last = server.log[-1]
    record(8, "device lost: the process ends after", took, "s", "with a nonzero code")
    record(8, "device lost: exit code", code, "", "not 0")
    record(8, "device lost: streams told", sum(end != "OK" for end in ends), "of 8", "all")
    print("  last words:", last)
    print("  streams:", sorted(set(ends)))
    assert code not in (0, None) and all(end == "INTERNAL" for end in ends), ends
    assert "panicked" not in "".join(server.log)


def collect_rest(stream):
    try:
        for _ in stream:
            pass
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def row_8_a_card_without_room_is_a_sentence():
    with Server(*FLAGS, kv_memory="4GiB") as first, contextlib.closing(Api(first.address)) as api:
        command = [binary(), "serve", "--port", "0", "--metrics-port", "0", *FLAGS]
        command += ["--kv-memory", "500GiB"]
        done = subprocess.run(
            [str(part) for part in command], check=False, capture_output=True, text=True
        )
        last = done.stderr.strip().splitlines()[-1]
        print("  second server:", last)
        assert done.returncode == 1 and "--kv-memory asks for 500.00 GiB" in last, done.stderr
        assert api.generate("Hi", sampling=greedy(5, ignore_eos=True)).status.name == "OK"
    record(8, "no room on the card: refused at the start, others go on", 1, "of 1", "1")


def survivors(server, seconds):
    """Inter-token latency of eight clients, p50 and p99 in ms."""
    shape = ["--prompt-tokens", 256, "--output-tokens", 256, "--concurrency", 8]
    shape += ["--duration", seconds, "--warmup", 4, "--slo-itl-ms", 1000]
    (stage,) = load(server, "closed", *shape)["stages"]
    return stage["itl_ms"]["p50"], stage["itl_ms"]["p99"], stage["itl_ms"]["mean"]


def row_2_what_a_storm_costs_others():
    with Server(*FLAGS, "--max-running", "128", kv_memory="16GiB") as server:
        quiet = survivors(server, 15)
        storm = ["--rate", 500, "--requests", 10_000, "--prompt-tokens", 8]
        storm += ["--output-tokens", 8, "--cancel", 1, "--drain", 5]
        noise = load(server, "open", *storm, wait=False)
        time.sleep(1)
        during = survivors(server, 15)
        noise.wait()
    for name, before, after in zip(("p50", "p99", "mean"), quiet, during):
        record(2, f"others' time between tokens, {name}, quiet", before, "ms", "-")
        record(2, f"others' time between tokens, {name}, in the storm", after, "ms", "-")
    record(2, "p99 in the storm", during[1] / quiet[1], "of quiet", "≤ 1.1")


def row_3_what_slow_readers_cost_others():
    with Server(*FLAGS, "--max-running", "128", kv_memory="16GiB") as server:
        quiet = survivors(server, 15)
        api = Api(server.address)
        api.call("GetModelInfo")
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
        links = [Link(api, server.address, options) for _ in range(64)]
        sampling = {"max_tokens": 6000, "logprobs": 20, "ignore_eos": True}
        streams = [link.stream(link.request("Once", sampling=sampling)) for link in links]
        for stream in streams:
            next(stream)
        while server.value("ebb:requests_ended_total", outcome="slow_reader") < 64:
            time.sleep(0.1)
        # What they were sent is still unread.
        during = survivors(server, 15)
        for link in links:
            link.close()
    for name, before, after in zip(("p50", "p99"), quiet, during):
        record(3, f"others' time between tokens, {name}", after / before, "of quiet", "≤ 1.05")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", help="append the figures to a CSV file")
    args = parser.parse_args()
    try:
        row_8_a_lost_device_ends_the_process()
        row_8_a_card_without_room_is_a_sentence()
        row_2_what_a_storm_costs_others()
        row_3_what_slow_readers_cost_others()
    finally:
        if args.record:
            new = not pathlib.Path(args.record).exists()
            with open(args.record, "a", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                if new:
                    rows.writerow(["row", "form", "what", "value", "unit", "target", "when"])
                rows.writerows(FIGURES)


if __name__ == "__main__":
    main()
