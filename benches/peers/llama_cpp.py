"""The same work by llama.cpp (PyPI xllamacpp), for a ratio beside Ebb's figures.

    python3 -m venv V && V/bin/pip install xllamacpp==2026.10.11549
    V/bin/python benches/peers/llama_cpp.py MODEL.gguf --threads 2 --streams 1,16 --tokens 128 \\
      --prompt 512 --raw llama_cpp.jsonl > llama_cpp.csv

Prints CSV with the fields that a row of another engine must have in benches/results. RAW gets every
answer of llama.cpp as it came, with its own timings, a line each. Greedy, no stop, weights kept in
the file's own format.
"""

import argparse
import csv
import datetime
import importlib.metadata
import json
import pathlib
import random
import shlex
import sys
import threading
import time

import xllamacpp as xlc


def main():
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("model")
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--streams", default="1,16")
    args.add_argument("--tokens", type=int, default=128)
    args.add_argument("--prompt", type=int, default=512)
    args.add_argument("--raw", type=pathlib.Path, default=pathlib.Path("llama_cpp.jsonl"))
    args = args.parse_args()
    streams = [int(s) for s in args.streams.split(",")]

    params = xlc.CommonParams()
    params.model.path = args.model
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.n_parallel = max(streams)
    params.n_ctx = max(streams) * (args.prompt + args.tokens + 64)
    params.n_predict = args.tokens
    params.verbosity = 0
    params.n_gpu_layers = 0
    server = xlc.Server(params)
    rng = random.Random(7)

    def complete(prompt, tokens, out):
        body = {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer = server.handle_completions(body)
        out.append(json.loads(answer) if isinstance(answer, str) else answer)

    written = csv.writer(sys.stdout)
    proof = [
        "llama.cpp",
        f"xllamacpp {importlib.metadata.version('xllamacpp')}",
        f"ggml on the CPU, {args.threads} threads",
        shlex.join(["python3", "benches/peers/llama_cpp.py", *sys.argv[1:]]),
        datetime.date.today().isoformat(),
        args.raw.name,
    ]

    def row(work, count, tokens, seconds, answers):
        with args.raw.open("a") as raw:
            raw.writelines(json.dumps(answer) + "\n" for answer in answers)
        rate = f"{tokens / seconds:.1f}"
        written.writerow([*proof, work, count, tokens, f"{seconds:.3f}", rate])
        sys.stdout.flush()

    def random_prompt(length):
        return [rng.randrange(1000, 40000) for _ in range(length)]

    complete(random_prompt(16), 8, [])  # warm up
    args.raw.write_text("")
    fields = "engine,version,kernel,command,date,raw,work,streams,tokens,seconds,tok_s"
    written.writerow(fields.split(","))
    for count in streams:
        answers = []
        threads = [
            threading.Thread(target=complete, args=(random_prompt(8), args.tokens, answers))
            for _ in range(count)
        ]
        start = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        seconds = time.perf_counter() - start
        assert len(answers) == count
        row("decode", count, count * args.tokens, seconds, answers)
    answers = []
    start = time.perf_counter()
    complete(random_prompt(args.prompt), 1, answers)
    row("prefill", 1, args.prompt, time.perf_counter() - start, answers)


main()
