"""The command line, as a person or a script uses it."""

import json
import subprocess

from server import binary, model_flags


def ebb(*arguments, stdin="", seconds=120):
    """Runs a command to its end."""
    command = [str(binary()), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds)


def test_generate_in_process_prints_one_json_object(golden):
    case = golden[0]
    flags = [
        "--prompt",
        case["prompt"],
        "--temperature",
        "0",
        "--max-tokens",
        "5",
        "--json",
        "--weights",
        "exact",
        *model_flags(),
    ]
    done = ebb("generate", *flags, "--kv-memory", "64MiB", "--logprobs", "1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["token_ids"] == case["sure_ids"][:5]
    assert answer["text"] == " Paris.\n\nThe"
    assert (answer["finish_reason"], answer["prompt_tokens"], answer["completion_tokens"]) == (
        "length",
        5,
        5,
    )
    assert len(answer["logprobs"]) == 5 and answer["tokens_per_second"] > 0


def test_generate_from_a_server_streams_text_and_tells_the_rate(server):
    flags = ["--server", f"http://{server.address}", "--temperature", "0", "--max-tokens", "5"]
    done = ebb("generate", "--prompt", "-", *flags, stdin="The capital of France is")
    assert (done.returncode, done.stdout) == (0, " Paris.\n\nThe\n"), done.stderr
    assert "tokens/s" in done.stderr and "5 prompt tokens" in done.stderr


def test_modes_of_the_kv_cache_answer_a_long_prompt():
    # Ten blocks of context, in memory for three of 16 bit.
    prompt = "one two three four five six seven eight nine ten " * 125
    flags = [
        "--prompt",
        "-",
        "--temperature",
        "0",
        "--max-tokens",
        "8",
        "--ignore-eos",
        "--json",
        *model_flags(),
    ]

    def answer(*more):
        done = ebb("generate", *flags, *more, stdin=prompt)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    whole = answer("--kv-mode", "preempt-only", "--min-kv-bits", "16")
    assert (whole["lowest_kv_bits"], whole["mean_kv_bits"]) == (16, 16)
    small = answer("--kv-memory", "14MiB", "--max-context", "1400")
    assert small["lowest_kv_bits"] < 16 and small["mean_kv_bits"] < 16
    static = answer("--kv-mode", "static", "--kv-floor", "k=polar44,v=int3,rotate=v")
    assert static["lowest_kv_bits"] == 3 and static["mean_kv_bits"] < 16
    assert all(len(a["token_ids"]) == 8 for a in (whole, small, static))
    # The same bytes are read, so the same answer comes.
    again = answer("--kv-mode", "static", "--kv-floor", "k=polar44,v=int3,rotate=v")
    assert again["token_ids"] == static["token_ids"]


def test_chat_keeps_its_history(server):
    lines = "/help\nWhat is the capital of Japan? Answer in one sentence.\n"
    lines += "/nonsense\n/reset\n\n/exit\nnot read\n"
    flags = ["--server", f"http://{server.address}", "--temperature", "0", "--max-tokens", "20"]
    done = ebb("chat", *flags, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of Japan is Tokyo.\n"
    for said in ["/reset", "no command /nonsense", "tokens/s"]:
        assert said in done.stderr


def test_eval_prints_one_json_object(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    done = ebb(
        "eval", "--text", str(text), "--ctx", "64", "--windows", "2", "--json", *model_flags()
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["mean_nll_per_window"]) == 2 and report["tokens"] == 2 * 63
    assert 1 < report["ppl"] < 200


def test_errors_are_one_sentence(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 64)
    missing = str(tmp_path / "missing.txt")
    for arguments in [
        ["generate", "--prompt", "x", "--model", str(broken)],
        ["generate", "--prompt", "x", "--model", "no-such-model"],
        ["generate", "--prompt", "x", "--server", "http://127.0.0.1:1"],
        ["generate", "--prompt", "x", "--top-p", "7", *model_flags()],
        ["serve", "--max-running", "0"],
        ["serve", "--kv-floor", "v=kitty25", *model_flags()],
        ["serve", "--kv-floor", "k=polar44", *model_flags()],
        ["serve", "--kv-profile", missing, *model_flags()],
        ["calibrate", "--text", missing, "--out", missing, *model_flags()],
        ["generate", "--prompt", "x", "--min-kv-bits", "5", *model_flags()],
        ["eval", "--text", missing, "--ctx", "8", "--windows", "1", *model_flags()],
    ]:
        done = ebb(*arguments)
        assert done.returncode == 1, (arguments, done)
        assert done.stdout == ""
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith("ebb: ") and len(last) > 20, (arguments, done.stderr)
        assert "panicked" not in done.stderr


def test_help_has_examples():
    for command in ["serve", "generate", "chat", "eval", "calibrate", "fetch"]:
        done = ebb(command, "--help")
        assert done.returncode == 0 and "Examples:" in done.stdout, command
