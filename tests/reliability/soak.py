#!/usr/bin/env python3
"""Serves under memory pressure for a long time and watches the process's memory.

    tests/reliability/run soak --minutes 30 --csv soak.csv
    tests/reliability/run soak --hours 24 --csv soak.csv

The KV memory holds a part of what is asked for, so blocks shrink all the time; clients answer,
cancel, read slowly, disconnect and send what is wrong. Fails when memory grows by more than
1 MiB an hour, when a request is lost, or when pages of ended requests stay held. The slope is
the median of the slopes between all pairs of samples (Theil and Sen), which single peaks do not
move; samples of the first third (at most 30 minutes) are left out.
"""

import argparse
import csv
import random
import statistics
import threading
import time

import grpc
from clients import Api, Link, Result, collect, load, tiny

SLOPE_MAX = 1.0  # MiB an hour
EVERY = 5.0  # seconds between samples


class Unruly(threading.Thread):
    """Clients that leave in the middle, on connections of their own, and ones that are wrong."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.server, self.random, self.ending = server, random.Random(seed), False
        self.calls = self.unexpected = 0

    def run(self):
        known = Api(self.server.address)
        known.call("GetModelInfo")
        while not self.ending:
            link = Link(known, self.server.address)
            for _ in range(self.random.randint(1, 8)):
                if not self.ending:
                    self.once(link)
            link.close()

    def once(self, link):
        self.calls += 1
        kind = self.random.choice(["whole", "leave", "cancel", "long", "wrong", "logprobs"])
        sampling = {"temperature": 1.0, "max_tokens": self.random.randint(1, 200)}
        sampling["n"] = self.random.choice([1, 1, 2, 4])
        if kind == "wrong":
            sampling["top_p"] = 7.0
        if kind == "logprobs":
            sampling["logprobs"] = 5
        prompt = "x" * (30_000 if kind == "long" else self.random.randint(1, 600))
        stream = link.stream(link.request(prompt, sampling=sampling), timeout=60)
        if kind in ("leave", "cancel"):
            try:
                for _ in range(self.random.randint(0, 20)):
                    next(stream)
            except (StopIteration, grpc.RpcError):
                return
            stream.cancel()
            return
        result = collect(stream, Result())
        is_wrong = kind in ("wrong", "long")
        expected = ["INVALID_ARGUMENT"] if is_wrong else ["OK", "RESOURCE_EXHAUSTED"]
        if result.status.name not in expected:
            self.unexpected += 1
            print(f"{kind}: {result.status.name}: {result.message}", flush=True)


def slope(samples):
    """MiB an hour, of (seconds, MiB)."""
    step = max(1, len(samples) // 400)
    points = samples[::step]
    pairs = (
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for i, earlier in enumerate(points)
        for later in points[i + 1 :]
    )
    return statistics.median(pairs) * 3600


def soak(seconds, out=None, rate=40):
    """Runs it; answers a dictionary of what was seen."""
    samples = []
    flags = ["--max-running", "32", "--max-waiting", "64"]
    with tiny(*flags, kv_memory="8MiB") as server:
        unruly = [Unruly(server, seed) for seed in range(3)]
        for thread in unruly:
            thread.start()
        flags = ["--rate", rate, "--duration", int(seconds), "--time-limit", int(seconds) + 120]
        flags += [
            "--cancel",
            "0.1",
            "--slow",
            "0.1",
            "--slow-pause-ms",
            "50",
            "--turns",
            "uniform:1..3",
        ]
        flags += ["--prompt-tokens", "uniform:10..800", "--output-tokens", "uniform:1..200"]
        flags += ["--prefix-tokens", "256", "--prefix-groups", "8", "--prefix-share", "0.5"]
        generator = load(server, "open", *flags, wait=False)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(EVERY)
            samples.append((time.monotonic() - began, server.memory()))
            if out and len(samples) % 12 == 0:
                write(out, samples)
            assert server.process.poll() is None, "the server ended:\n" + "\n".join(server.log)
        for thread in unruly:
            thread.ending = True
        for thread in unruly:
            thread.join(60)
        assert generator.poll() in (None, 0), "the load generator failed"
        generator.terminate()  # the last of its clients leave without an answer
        generator.wait()
        server.idle(30)
        values = server.metrics()
        shrinks = server.total("ebb:kv_shrinks_total")
        received = server.value("ebb:requests_received_total")
        ended = server.total("ebb:requests_ended_total")
        errors = server.value("ebb:requests_ended_total", outcome="error")
        seen = {
            "seconds": seconds,
            "requests": int(received),
            "refused": int(server.total("vllm:admission_rejections_total")),
            "lost": int(received - ended),
            "errors": int(errors),
            "unexpected": sum(thread.unexpected for thread in unruly),
            "shrinks": int(shrinks),
            "preemptions": int(server.value("vllm:num_preemptions_total")),
            "tokens": int(server.value("vllm:generation_tokens_total")),
            "kv_held": values["vllm:kv_cache_usage_perc", frozenset()],
            "rss_first": samples[0][1],
            "rss_last": samples[-1][1],
        }
    warm = [s for s in samples if s[0] > min(1800, seconds / 3)]
    seen["slope"] = slope(warm)
    if out:
        write(out, samples)
    return seen


def write(path, samples):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["seconds", "rss_mib"])
        rows.writerows((f"{at:.0f}", f"{mib:.3f}") for at, mib in samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--rate", type=float, default=40, help="requests a second")
    parser.add_argument("--csv", help="where samples go")
    args = parser.parse_args()
    seconds = 60 * args.minutes + 3600 * args.hours or 1800
    seen = soak(seconds, args.csv, args.rate)
    for name, value in seen.items():
        print(f"{name:12} {value:.2f}" if isinstance(value, float) else f"{name:12} {value}")
    assert seen["shrinks"] > 0, "nothing shrank: the soak tests nothing"
    assert seen["lost"] == seen["errors"] == seen["unexpected"] == 0
    assert seen["kv_held"] == 0, "pages of ended requests are still held"
    assert seen["slope"] < SLOPE_MAX, f"memory grows by {seen['slope']:.2f} MiB an hour"


if __name__ == "__main__":
    main()
