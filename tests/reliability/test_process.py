"""What the process does when it is stopped, starved or given what is broken: rows 5, 7, 9, 20."""

import concurrent.futures
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import time

import grpc
from clients import Api, greedy, load, slow, tiny
from server import binary
from soak import soak
from test_hang import StoppedThread


def test_row_05_sigterm_loses_no_request(full, record):
    count = 64 if full else 16
    with slow("--grace-period", "60", "--max-running", str(count)) as server:
        api = Api(server.address)
        streams = []
        for i in range(count):
            request = api.request(f"{i}", sampling=greedy(12, ignore_eos=True))
            streams.append(api.stream(request, timeout=120))
        next(streams[-1])
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        while server.get("/readyz")[0] == 200:
            assert time.monotonic() - began < 5
        unready = time.monotonic() - began
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            results = list(pool.map(drained, streams))
        assert server.exit_code(60) == 0
        took = time.monotonic() - began
    lost = sum(not ok for ok in results)
    record(5, "requests in flight", count, "", "-")
    record(5, "lost", lost, "", "0")
    record(5, "not ready after", unready, "s", "≤ 1")
    record(5, "ended after", took, "s", "≤ the grace period of 60")
    assert lost == 0 and unready <= 1


def drained(stream):
    """Whether a stream ended well."""
    try:
        for _ in stream:
            pass
    except grpc.RpcError:
        return False
    return True


def test_row_07_a_hung_engine_fails_its_probe_in_time(full, record):
    with slow("--hang-timeout", "2") as server:
        api = Api(server.address)
        stream = api.stream(api.request("Count", sampling=greedy(4000, ignore_eos=True)))
        next(stream)
        with StoppedThread(server.process.pid, "ebb-engine") as stopped:
            began = time.monotonic()
            while server.get("/livez")[0] == 200:
                assert time.monotonic() - began < 10
                time.sleep(0.01)
            late = time.monotonic() - began - 2
            server.process.kill()
            while server.process.poll() is None:
                stopped.reap()
                time.sleep(0.01)
    record(7, "liveness fails after the threshold by", late, "s", "≤ 1")
    assert -0.5 < late <= 1


def test_row_07_a_saturated_engine_is_never_called_hung(full, record):
    seconds = 300 if full else 4
    flags = ["--hang-timeout", "2", "--max-running", "64", "--max-waiting", "64"]
    with tiny(*flags, kv_memory="8MiB") as server:
        shape = ["--prompt-tokens", "uniform:100..2000", "--output-tokens", "uniform:50..200"]
        rate = ["--rate", "300", "--duration", seconds, "--time-limit", seconds + 60]
        generator = load(server, "open", *rate, *shape, wait=False)
        began, failures, probes = time.monotonic(), 0, 0
        while time.monotonic() - began < seconds:
            failures += server.get("/livez")[0] != 200
            probes += 1
            time.sleep(0.1)
        generator.kill()
        generator.wait()
    record(7, f"false alarms in {seconds} s of saturation", failures, f"of {probes} probes", "0")
    assert failures == 0


def test_row_09_memory_that_is_far_too_small_changes_no_answer_of_16_bits(full, record):
    clients = 64 if full else 12
    tokens = 300 if full else 120
    prompts = [f"Chapter {i}. It was a dark and stormy night" for i in range(clients)]
    sampling = greedy(tokens, ignore_eos=True)

    def ask(server, prompt):
        with contextlib.closing(Api(server.address)) as api:
            return api.generate(prompt, sampling=sampling, min_kv_bits=16, timeout=600)

    with tiny(kv_memory="256MiB") as server:
        alone = [ask(server, prompt)[0].token_ids for prompt in prompts]
    with tiny(kv_memory="3MiB") as server:
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            together = list(pool.map(lambda prompt: ask(server, prompt), prompts))
        wanted = clients * (tokens + 44) * 4 / 1024
        server.idle()
        assert server.value("vllm:kv_cache_usage_perc") == 0
    record(9, "KV memory wanted", wanted / 3, "times what there is", "-")
    assert all(result.status.name == "OK" for result in together), [r.message for r in together]
    same = sum(result[0].token_ids == ids for result, ids in zip(together, alone))
    record(9, "answers that are the same tokens", same, f"of {clients}", "all")
    assert same == clients


def default_model():
    """The file of the default model, fetched into a folder of its own if it is nowhere yet."""
    if "EBB_TEST_MODEL" in os.environ:
        return pathlib.Path(os.environ["EBB_TEST_MODEL"])
    subprocess.run([binary(), "fetch"], capture_output=True, check=True)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    return next((cache / "ebb").rglob("*.gguf"))


def test_row_20_a_damaged_model_is_never_ready(full, record, tmp_path):
    whole = default_model().read_bytes()
    chance, rounds, slowest = random.Random(20), 40 if full else 6, 0.0
    for i in range(rounds):
        broken = tmp_path / "broken.gguf"
        if i % 2:
            broken.write_bytes(whole[: chance.randrange(len(whole))])
        else:
            start = bytearray(whole)
            for _ in range(200):
                start[chance.randrange(4096)] = chance.randrange(256)
            broken.write_bytes(start)
        command = [
            binary(),
            "serve",
            "--port",
            "0",
            "--http-port",
            "0",
            "--metrics-port",
            "0",
            "--model",
            broken,
        ]
        began = time.monotonic()
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        slowest = max(slowest, time.monotonic() - began)
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1 and last.startswith("ebb: "), done.stderr
        assert "panicked" not in done.stderr and '"ready"' not in done.stderr
    record(20, "damaged files refused", rounds, f"of {rounds}", "all; never ready")
    record(20, "refused within", slowest, "s", "≤ 1")


def test_row_20_a_full_volume_costs_the_log_alone(record, tmp_path):
    log = tmp_path / "trajectory.log"
    # Files may have 8 blocks of 512 bytes; what is more fails as on a full volume.
    limit = "trap '' XFSZ; ulimit -f 8"
    with contextlib.ExitStack() as held:
        server = held.enter_context(tiny("--trajectory-log", log, limit=limit))
        api = held.enter_context(contextlib.closing(Api(server.address)))
        answers = [api.generate("Hi", sampling=greedy(50, ignore_eos=True)) for _ in range(20)]
        assert all(answer.status.name == "OK" for answer in answers)
        assert server.value("ebb:trajectories_total", outcome="lost") > 0
        assert log.stat().st_size <= 8 * 512
    record(20, "answers while the log's volume is full", len(answers), "of 20", "all")


def test_row_20_a_short_soak(record):
    seen = soak(10)
    record(20, "requests in a soak of 10 s", seen["requests"], "", "-")
    record(20, "shrinks in it", seen["shrinks"], "", "-")
    assert seen["shrinks"] > 0 and seen["requests"] > 100
    assert seen["lost"] == seen["errors"] == seen["unexpected"] == seen["kv_held"] == 0
