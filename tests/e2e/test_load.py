"""Many clients at once, most of them badly behaved."""

import collections
import concurrent.futures
import random
import threading
import time

import grpc
import pytest

from api import Api, Result, collect, greedy
from server import Server

STREAMS = 64
CODE = grpc.StatusCode


class Chaos:
    """One client that does what its seed says."""

    KINDS = [
        "complete",
        "complete",
        "cancel",
        "disconnect",
        "deadline",
        "own_deadline",
        "abort",
        "invalid",
    ]

    def __init__(self, api, address, seed):
        self.api, self.address = api, address
        self.random = random.Random(seed)
        self.kind = self.KINDS[seed % len(self.KINDS)]
        self.name = f"chaos-{seed}"

    def run(self):
        """Makes one call; returns the status that the client saw."""
        sampling = {
            "temperature": 1.0,
            "max_tokens": self.random.randint(8, 32),
            "ignore_eos": True,
        }
        sampling["n"] = self.random.choice([1, 1, 1, 2])
        fields = {
            "request_id": self.name,
            "sampling": sampling,
            "priority": self.random.randint(-1, 1),
        }
        prompt = "word " * self.random.randint(1, 150)
        if self.kind == "invalid":
            return self.api.generate(prompt, **{**fields, "sampling": {"top_p": 7.0}}).status
        if self.kind == "own_deadline":
            return self.api.generate(
                prompt, timeout_ms=self.random.randint(1, 1500), **fields
            ).status
        if self.kind == "deadline":
            return self.api.generate(
                prompt, timeout=self.random.uniform(0.001, 1.5), **fields
            ).status
        if self.kind == "disconnect":
            return self.disconnect(prompt, fields)
        stream = self.api.stream(self.api.request(prompt, **fields), timeout=120)
        if self.kind == "complete":
            result = collect(stream)
            assert result.status == CODE.OK, result.message
            assert len(result.choices) == sampling["n"]
            for choice in result.choices.values():
                assert (
                    len(choice.token_ids)
                    == choice.finished.completion_tokens
                    == sampling["max_tokens"]
                )
            return result.status
        result = Result()
        try:
            for _ in range(self.random.randint(0, 6)):
                result.add(next(stream))
        except StopIteration:
            return CODE.OK
        if self.kind == "abort":
            self.api.call("Abort", request_id=self.name)
        else:
            stream.cancel()
        return collect(stream, result).status

    def disconnect(self, prompt, fields):
        """Closes the whole connection in the middle of the answer."""
        api = Api(self.address)
        stream = api.stream(api.request(prompt, **fields))
        try:
            for _ in range(self.random.randint(0, 4)):
                next(stream)
        except StopIteration:
            pass
        api.close()
        return CODE.CANCELLED


def by_label(server, name, label):
    """{label's value: sample} of one counter."""
    found = collections.Counter()
    for (sample, labels), value in server.metrics().items():
        if sample == name:
            found[dict(labels).get(label)] += value
    return found


def test_every_request_of_64_unruly_clients_is_accounted_for(api, server):
    server.idle()
    received = server.value("ebb:requests_received_total")
    ended = server.total("ebb:requests_ended_total")
    calls = server.total("ebb:rpcs_total")
    invalid = server.value("ebb:rpcs_total", method="Generate", code="INVALID_ARGUMENT")

    clients = [Chaos(api, server.address, seed) for seed in range(STREAMS)]
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        statuses = list(pool.map(Chaos.run, clients))
    seen = collections.Counter(
        (client.kind, status.name) for client, status in zip(clients, statuses)
    )
    for kind, allowed in {
        "complete": {"OK"},
        "invalid": {"INVALID_ARGUMENT"},
        "cancel": {"CANCELLED", "OK"},
        "abort": {"CANCELLED", "OK"},
        "deadline": {"DEADLINE_EXCEEDED", "OK"},
        "own_deadline": {"DEADLINE_EXCEEDED", "OK"},
    }.items():
        assert {status for k, status in seen if k == kind} <= allowed, seen

    server.idle()
    assert server.value("vllm:kv_cache_usage_perc") == 0, "pages of ended requests are still held"
    received = server.value("ebb:requests_received_total") - received
    ended = server.total("ebb:requests_ended_total") - ended
    assert received == ended
    # A deadline of milliseconds may pass before the call has left the client.
    unsent = seen["deadline", "DEADLINE_EXCEEDED"]
    assert STREAMS - seen["invalid", "INVALID_ARGUMENT"] - unsent <= received <= STREAMS
    aborts = sum(client.kind == "abort" for client in clients)
    # Every Generate is counted once by its status; a call counts when its task has seen the end.
    deadline = time.monotonic() + 5
    while server.total("ebb:rpcs_total") - calls < STREAMS and time.monotonic() < deadline:
        time.sleep(0.02)
    assert STREAMS - unsent <= server.total("ebb:rpcs_total") - calls <= STREAMS + aborts
    now_invalid = server.value("ebb:rpcs_total", method="Generate", code="INVALID_ARGUMENT")
    assert now_invalid - invalid == STREAMS // len(Chaos.KINDS)
    assert not by_label(server, "ebb:requests_ended_total", "outcome")["error"]
    # And it still answers.
    assert api.generate("The capital of France is", sampling=greedy(1))[0].text == " Paris"


def test_a_full_queue_is_said_at_once():
    with Server("--max-running", "1", "--max-waiting", "2") as server:
        api = Api(server.address)
        sampling = greedy(4000, ignore_eos=True)
        streams = [api.stream(api.request("Once", sampling=sampling))]
        next(streams[0])  # It runs: the others will wait.
        streams += [api.stream(api.request("Once", sampling=sampling)) for _ in range(2)]
        deadline = time.monotonic() + 10
        while server.value("vllm:num_requests_waiting") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.value("vllm:num_requests_running") == 1
        assert server.value("vllm:num_requests_waiting") == 2
        times = []
        for _ in range(5):
            began = time.monotonic()
            refused = api.generate("Once", sampling=sampling, timeout=5)
            times.append(time.monotonic() - began)
            assert refused.status == CODE.RESOURCE_EXHAUSTED, refused.message
        # The fastest, because other programs run on this machine, too.
        assert min(times) < 0.05, times
        assert server.value("vllm:admission_rejections_total", reason="queue_full") == 5
        for stream in streams:
            stream.cancel()
        server.idle()
        assert api.generate("Once", sampling=greedy(2)).status == CODE.OK


def test_a_queue_shorter_than_a_burst_refuses_nobody_who_finds_a_place():
    with Server("--max-running", "8", "--max-waiting", "2") as server:
        api = Api(server.address)
        with concurrent.futures.ThreadPoolExecutor(10) as pool:

            def burst(round):
                ask = lambda client: api.generate(
                    f"{round}, {client}", sampling=greedy(2 + client % 3, ignore_eos=True)
                )
                return list(pool.map(ask, range(10)))

            # An idle server: eight run at once, and two wait.
            for round in range(5):
                assert [answer.status for answer in burst(round)] == [CODE.OK] * 10
                server.idle()
            # Nobody is refused either who asks again as soon as the answer is there.
            again = lambda client: [
                api.generate(f"{client} {i}", sampling=greedy(1 + client % 4)).status
                for i in range(6)
            ]
            assert list(pool.map(again, range(10))) == [[CODE.OK] * 6] * 10
        assert server.value("vllm:admission_rejections_total", reason="queue_full") == 0


def test_preempted_requests_answer_as_if_alone():
    prompts = [f"Chapter {i}. It was a dark and stormy night" for i in range(5)]
    sampling = greedy(90, ignore_eos=True)
    # Room for some 360 tokens, where 5 x 100 are wanted. Weights are packed, which is the default.
    with Server("--kv-mode", "preempt-only", "--no-prefix-cache", kv_memory="8MiB") as server:
        crowded = Api(server.address)
        alone = [crowded.generate(prompt, sampling=sampling)[0].token_ids for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            together = list(
                pool.map(lambda prompt: crowded.generate(prompt, sampling=sampling), prompts)
            )
        assert server.value("vllm:num_preemptions_total") > 0, (
            "nothing was preempted: the test tests nothing"
        )
        assert server.value("vllm:kv_cache_usage_perc") == 0
    for result, expected in zip(together, alone):
        assert result.status == CODE.OK, result.message
        assert result[0].token_ids == expected


@pytest.fixture
def stalled(server):
    """A stream with much output, of which only the first event is read."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
    api = Api(server.address, options)
    sampling = {"n": 16, "logprobs": 20, "max_tokens": 400, "temperature": 1.0, "ignore_eos": True}
    stream = api.stream(api.request("Once", sampling=sampling))
    next(stream)
    yield stream
    stream.cancel()
    api.close()


def test_a_reader_that_stops_is_bounded_and_slows_nobody(api, server, golden, stalled):
    ended = server.value("ebb:requests_ended_total", outcome="slow_reader")
    case = golden[0]
    beside = threading.Event()

    def others():
        # Asks all the time that the stalled stream is being generated.
        answers = []
        while not beside.is_set():
            began = time.monotonic()
            answer = api.generate(case["prompt"], sampling=greedy(5, ignore_eos=True))
            answers.append((answer[0].token_ids == case["sure_ids"][:5], time.monotonic() - began))
        return answers

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asking = pool.submit(others)
        deadline = time.monotonic() + 90
        while server.value("ebb:requests_ended_total", outcome="slow_reader") == ended:
            assert time.monotonic() < deadline, (
                "the stream of a reader that stopped was never ended"
            )
            time.sleep(0.05)
        beside.set()
        answers = asking.result()
    assert len(answers) >= 2 and all(right for right, _ in answers)

    received = 0
    with pytest.raises(grpc.RpcError) as error:
        for response in stalled:
            received += response.ByteSize()
    assert error.value.code() == CODE.RESOURCE_EXHAUSTED
    # 144 KiB by the engine's own count (an encoded log-probability is up to half as large again),
    # what this client took into its window, and the messages on the way.
    assert received < 1.5 * (144 << 10) + (64 << 10) + (112 << 10), received
    server.idle()
    assert server.value("vllm:kv_cache_usage_perc") == 0


def test_an_urgent_request_gets_the_slot_of_a_running_one():
    with Server("--max-running", "1", "--priority-preemption") as server:
        api = Api(server.address)
        request = api.request("Count.", sampling=greedy(80, ignore_eos=True), priority=3)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(lambda: collect(api.stream(request, timeout=300)))
            while server.value("vllm:num_requests_running") == 0:
                time.sleep(0.01)
            urgent = api.generate("Hi", sampling=greedy(3, ignore_eos=True), priority=-1)
            assert urgent.status == grpc.StatusCode.OK, urgent.message
            assert not long.done()
            result = long.result()
        assert result.status == grpc.StatusCode.OK, result.message
        assert len(result[0].token_ids) == 80
        assert server.value("vllm:num_preemptions_total") == 1
        alone = api.generate("Count.", sampling=greedy(80, ignore_eos=True), timeout=120)
        assert alone[0].token_ids == result[0].token_ids
        api.close()
