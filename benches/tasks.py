#!/usr/bin/env python3
"""What a KV cache costs in answers: GSM8K, HumanEval and a planted fact, greedily, one server after
the other.

usage: tasks.py MODEL OUT [--gsm8k FILE.jsonl] [--humaneval FILE.jsonl[.gz]] [--needle TEXT]
           --mode NAME="FLAGS OF EBB SERVE" ...

Every mode answers the same prompts, all at once, so that a small --kv-memory presses. The first
mode is what the others' answers are compared with: tokens until the first that differs. OUT is a
folder: summary.csv has a row for each mode and task, needle.csv one for each depth, NAME.jsonl
every answer. GSM8K is asked with eight solved problems, the file's last ones, in front; an answer
counts if its last number is right. HumanEval's programs run in processes of their own with little
memory and time, and no network if `unshare -n` works: they are a model's, so run this where they
can do no harm. Needs the packages of tests/e2e (target/e2e-venv has them); the program is
target/release/ebb or target/debug/ebb, whichever is newer, or $EBB_BIN.
"""

import argparse
import concurrent.futures
import csv
import gzip
import json
import os
import pathlib
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from api import Api  # noqa: E402
from server import Server  # noqa: E402

SHOTS = 8
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FIELDS = """mode task asked right share agree_median agree_all mean_kv_bits lowest_kv_bits
preemptions""".split()


class Question:
    """A prompt, what ends its answer, and whether an answer is right."""

    def __init__(self, task, name, prompt, stop, tokens, is_right):
        self.task, self.name, self.prompt, self.stop, self.tokens, self.is_right = (
            task,
            name,
            prompt,
            stop,
            tokens,
            is_right,
        )


def lines(path):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        return [json.loads(line) for line in file]


def number(text):
    found = NUMBER.findall(text)
    return found[-1].replace(",", "").rstrip(".") if found else None


def gsm8k(path, count):
    problems = lines(path)
    solved = lambda p: (
        f"Question: {p['question']}\nAnswer: "
        + re.sub(r"<<.*?>>", "", p["answer"]).replace("####", "The answer is")
    )
    shots = "\n\n".join(solved(p) for p in problems[-SHOTS:]) + "\n\n"
    for i, problem in enumerate(problems[:-SHOTS][:count]):
        want = number(problem["answer"].split("####")[1])
        same = lambda text, want=want: (
            (got := number(text)) is not None and float(got) == float(want)
        )
        yield Question(
            "gsm8k",
            f"gsm8k/{i}",
            f"{shots}Question: {problem['question']}\nAnswer:",
            ["\nQuestion:"],
            320,
            same,
        )


def passes(program):
    """Whether a program ends without an error, within ten seconds and a gigabyte."""
    bounds = {
        resource.RLIMIT_CPU: 10,
        resource.RLIMIT_AS: 1 << 30,
        resource.RLIMIT_NPROC: 64,
        resource.RLIMIT_FSIZE: 1 << 20,
    }

    def bound():
        for which, most in bounds.items():
            resource.setrlimit(which, (most, most))

    with tempfile.TemporaryDirectory() as folder:
        alone = (
            ["unshare", "-rn"]
            if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
            else []
        )
        command = [*alone, sys.executable, "-I", "-c", program]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, timeout=15, preexec_fn=bound, env={}
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def humaneval(path, count):
    for problem in lines(path)[:count]:

        def is_right(text, p=problem):
            return passes(f"{p['prompt']}{text}\n{p['test']}\ncheck({p['entry_point']})\n")

        stop = ["\nclass ", "\ndef ", "\n#", "\nif ", "\nprint", "\n```"]
        yield Question("humaneval", problem["task_id"], problem["prompt"], stop, 384, is_right)


def needle(path, lengths, depths, each):
    """A fact at a depth of a text, and the question for it at the end; lengths in words, about 1.4
    tokens each.
    """
    words = path.read_text().split()
    random.seed(1)
    for length in lengths:
        for depth in depths:
            for i in range(each):
                start, code = (
                    random.randrange(len(words) - length),
                    random.randrange(10_000, 100_000),
                )
                text = words[start : start + length]
                text.insert(
                    int(length * depth / 100),
                    f"\n\nThe secret number of {CITIES[i % len(CITIES)]} is {code}.\n\n",
                )
                prompt = " ".join(text) + f"\n\nThe secret number of {CITIES[i % len(CITIES)]} is"
                right = lambda got, code=code: str(code) in got
                yield Question(
                    f"needle {length} words",
                    f"needle/{length}/{depth}/{i}",
                    prompt,
                    ["\n"],
                    8,
                    right,
                )


CITIES = ["Lyon", "Osaka", "Lima", "Oslo", "Quito", "Turin", "Leeds", "Perth"]


def answers(server, questions, clients):
    api = Api(server.address)

    def ask(question):
        sampling = {"temperature": 0, "max_tokens": question.tokens, "stop": question.stop}
        result = api.generate(question.prompt, sampling=sampling, timeout=7200)
        assert result[0].finished is not None, f"{question.name}: {result.message}"
        return result[0]

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return list(pool.map(ask, questions))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--mode", action="append", required=True, metavar='NAME="FLAGS"')
    parser.add_argument("--gsm8k", type=pathlib.Path)
    parser.add_argument("--humaneval", type=pathlib.Path)
    parser.add_argument("--needle", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=200, help="problems of GSM8K and of HumanEval")
    parser.add_argument("--needle-words", default="700,1400,2800")
    parser.add_argument("--needle-depths", default="10,30,50,70,90", help="percent")
    parser.add_argument("--needle-each", type=int, default=4)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument(
        "--kv-memory", default="1GiB", help="of every mode whose flags say nothing of it"
    )
    args = parser.parse_args()
    os.environ["EBB_TEST_MODEL"] = args.model
    whole = lambda text: [int(part) for part in text.split(",")]
    questions = [
        *(gsm8k(args.gsm8k, args.count) if args.gsm8k else []),
        *(humaneval(args.humaneval, args.count) if args.humaneval else []),
        *(
            needle(
                args.needle, whole(args.needle_words), whole(args.needle_depths), args.needle_each
            )
            if args.needle
            else []
        ),
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    reference = None
    with (args.out / "summary.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(FIELDS)
        for mode in args.mode:
            name, flags = mode.split("=", 1)
            flags = shlex.split(flags)
            memory = args.kv_memory
            if "--kv-memory" in flags:
                at = flags.index("--kv-memory")
                memory = flags[at + 1]
                del flags[at : at + 2]
            with Server(*flags, kv_memory=memory) as server:
                got = answers(server, questions, args.clients)
                preempted = server.total("vllm:num_preemptions_total")
            reference = reference or got
            for row in judge(args.out / f"{name}.jsonl", questions, got, reference):
                rows.writerow([name, *row, f"{preempted:.0f}"])
                print(name, *row, file=sys.stderr)
            file.flush()
    by_depth(args.out, [mode.split("=", 1)[0] for mode in args.mode])


def by_depth(out, modes):
    """needle.csv: of the answers about planted facts, how many are right, by length and depth."""
    with (out / "needle.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["mode", "words", "depth_percent", "asked", "right"])
        for mode in modes:
            found = {}
            for answer in lines(out / f"{mode}.jsonl"):
                task, *place = answer["name"].split("/")
                if task == "needle":
                    found.setdefault(tuple(place[:2]), []).append(answer["right"])
            for place, right in found.items():
                rows.writerow([mode, *place, len(right), sum(right)])


def judge(path, questions, got, reference):
    by_task = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        all_right = list(
            pool.map(lambda question, answer: question.is_right(answer.text), questions, got)
        )
    with path.open("w") as file:
        for question, answer, other, right in zip(questions, got, reference, all_right):
            pairs = zip(answer.token_ids, other.token_ids)
            agree = next(
                (i for i, (a, b) in enumerate(pairs) if a != b),
                min(len(answer.token_ids), len(other.token_ids)),
            )
            is_same = list(answer.token_ids) == list(other.token_ids)
            finished = answer.finished
            json.dump(
                {"name": question.name, "right": right, "agree": agree, "text": answer.text}, file
            )
            file.write("\n")
            found = (right, agree, is_same, finished.mean_kv_bits, finished.lowest_kv_bits)
            by_task.setdefault(question.task, []).append(found)
    for task, found in by_task.items():
        right, agree, same, mean, lowest = zip(*found)
        count = len(found)
        median = sorted(agree)[count // 2]
        yield [
            task,
            count,
            sum(right),
            f"{sum(right) / count:.3f}",
            median,
            sum(same),
            f"{sum(mean) / count:.2f}",
            min(lowest),
        ]


if __name__ == "__main__":
    main()
