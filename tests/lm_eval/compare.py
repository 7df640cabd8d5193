#!/usr/bin/env python3
"""Log-likelihoods of lm-eval's `local-completions` beside those of `ebb eval`: see run."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from server import ROOT, Server, binary, model_flags

TEXT = ROOT / "tests" / "data" / "wikitext2-test-head.txt"
# Tokens of each text, and how many there are.
LENGTHS = [16, 40, 100, 130, 200, 257, 300, 400]
# Nats a token; both compute the same, and JSON has the shortest text of each float.
CLOSE = 1e-5
# All of a text but its first token is to be expected after that one.
TASK = """
task: local
dataset_path: json
dataset_kwargs: {{data_files: {{test: {texts}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{first}}}}"
doc_to_target: "{{{{rest}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def texts(server):
    """Texts that are tokenised as they were cut, each with its first token apart."""
    ids = server.ask("/tokenize", {"prompt": TEXT.read_text()})[1]["tokens"]

    def spell(ids):
        return server.ask("/detokenize", {"tokens": ids})[1]["prompt"]

    at, found = 0, []
    for length in LENGTHS:
        # lm-eval moves spaces at the end of the first part into the second.
        while True:
            part, first = ids[at : at + length], spell(ids[at : at + 1])
            whole = spell(part)
            again = server.ask("/tokenize", {"prompt": whole})[1]["tokens"]
            if first.strip() and first == first.rstrip() and again == part:
                break
            at += 1
        found.append({"first": first, "rest": whole[len(first) :]})
        at += length
    return found


def of_lm_eval(program, server, docs, folder):
    """The sum of each text's log-probabilities, and of how many tokens."""
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (folder / "local.yaml").write_text(TASK.format(texts=path))
    command = [program, "run", "--model", "local-completions", "--tasks", "local"]
    command += ["--include_path", folder, "--log_samples", "--output_path", folder / "out"]
    url = f"http://{server.api}/v1/completions"
    command += ["--model_args", f"model=local,base_url={url},tokenizer_backend=remote"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (samples,) = (folder / "out").rglob("samples_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    lines.sort(key=lambda line: line["doc_id"])
    return [float(line["filtered_resps"][0][0]) for line in lines]


def of_ebb(doc, tokens, folder):
    path = folder / "text.txt"
    path.write_text(doc["first"] + doc["rest"])
    command = [binary(), "eval", "--text", path, "--ctx", tokens, "--windows", 1, "--json"]
    done = subprocess.run(
        [str(part) for part in [*command, *model_flags()]],
        check=True,
        capture_output=True,
        text=True,
    )
    told = json.loads(done.stdout)
    assert told["tokens"] == tokens - 1, told
    return -told["mean_nll_per_window"][0] * told["tokens"]


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with Server("--served-model-name", "local") as server:
            docs = texts(server)
            theirs = of_lm_eval(program, server, docs, folder)
        assert len(theirs) == len(docs)
        for doc, tokens, likelihood in zip(docs, LENGTHS, theirs, strict=True):
            ours = of_ebb(doc, tokens, folder)
            apart = abs(ours - likelihood) / (tokens - 1)
            print(f"{tokens:4} tokens: lm-eval {likelihood:10.4f}, ebb eval {ours:10.4f}")
            assert apart < CLOSE, f"{apart} nats a token apart"
    print("lm-eval and ebb eval agree")


if __name__ == "__main__":
    main(sys.argv[1])
