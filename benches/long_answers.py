#!/usr/bin/env python3
"""What shrinking costs a long answer, by place: progressive serving against formats that are there
from the start.

usage: long_answers.py EBB_MODEL TEXT OUT.csv [--kv SPEC ...] [--server-flags "..."]

Serves answers under memory pressure with a trajectory log, then has `ebb replay` run the very same
tokens beside the logged trajectory: the 16-bit run that all are compared with, and each SPEC, whose
blocks stand at their formats as soon as they are full. One row for each bin of the answers' tokens
and each run. Needs the packages of tests/e2e (target/e2e-venv has them); the program is
target/release/ebb or target/debug/ebb, whichever is newer, or $EBB_BIN.
"""

import argparse
import collections
import concurrent.futures
import csv
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from api import Api  # noqa: E402
from server import Server, binary  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument(
        "text", type=pathlib.Path, help="prompts are pieces of it, one behind the other"
    )
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--tokens", type=int, default=3072, help="tokens of each answer")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="greedy answers of small models run in circles",
    )
    parser.add_argument("--bin", type=int, default=256)
    parser.add_argument("--kv-memory", default="88MiB")
    parser.add_argument("--server-flags", default="", help="further flags of ebb serve")
    parser.add_argument("--replay-flags", default="", help="further flags of ebb replay")
    parser.add_argument("--kv", action="append", default=[])
    args = parser.parse_args()
    os.environ["EBB_TEST_MODEL"] = args.model
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log.jsonl"
        flags = ["--no-prefix-cache", "--trajectory-log", log, *shlex.split(args.server_flags)]
        with Server(*flags, kv_memory=args.kv_memory) as server:
            answer_all(server, args)
            preempted = server.total("vllm:num_preemptions_total")
        print(f"{args.answers} answers, {preempted:.0f} preemptions", file=sys.stderr)
        replay(log, args)


def answer_all(server, args):
    """All at once, so that they press each other."""
    api = Api(server.address)
    text = args.text.read_text().replace("\r\n", "\n")
    ids = list(api.call("Tokenize", text=text[: args.answers * args.prompt * 8]).token_ids)
    pieces = [ids[i * args.prompt :][: args.prompt] for i in range(args.answers)]

    def answer(index):
        sampling = {
            "temperature": args.temperature,
            "seed": index + 1,
            "max_tokens": args.tokens,
            "ignore_eos": True,
        }
        result = api.generate(token_ids=pieces[index], sampling=sampling, timeout=3600)
        assert len(result[0].token_ids) == args.tokens, result.message
        return result[0].finished

    with concurrent.futures.ThreadPoolExecutor(args.answers) as pool:
        for finished in pool.map(answer, range(args.answers)):
            print(str(finished).replace("\n", " "), file=sys.stderr)


def replay(log, args):
    kv = [part for spec in args.kv for part in ("--kv", spec)]
    command = [
        binary(),
        "replay",
        log,
        "--model",
        args.model,
        "--json",
        "--bin",
        str(args.bin),
        *kv,
    ]
    done = subprocess.run(
        [*map(str, command), *shlex.split(args.replay_flags)], stdout=subprocess.PIPE, text=True
    )
    sums = collections.defaultdict(lambda: [0, 0.0, 0.0])
    ends = collections.defaultdict(list)
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    for report in reports:
        print(
            report["request"],
            report["moves"],
            report["same"],
            report.get("why", ""),
            file=sys.stderr,
        )
        for run in report["runs"]:
            ends[run["kv"]].append((run["mean_bits"], run["agree"]))
            for place in run["by_place"]:
                total = sums[run["kv"], place["from"]]
                total[0] += place["tokens"]
                total[1] += place["tokens"] * place["kl"]
                total[2] += place["tokens"] * place["top1"]
    assert done.returncode == 0 and len(reports) == args.answers, "replay failed"
    with args.out.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["kv", "from", "tokens", "kl", "top1", "mean_bits_at_end", "agree_median"])
        for (kv, start), (count, kl, top1) in sums.items():
            bits = sum(b for b, _ in ends[kv]) / len(ends[kv])
            agree = sorted(a for _, a in ends[kv])[len(ends[kv]) // 2]
            rows.writerow(
                [kv, start, count, f"{kl / count:.5f}", f"{top1 / count:.4f}", f"{bits:.3f}", agree]
            )


if __name__ == "__main__":
    main()
