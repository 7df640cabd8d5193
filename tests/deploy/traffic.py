"""Steady traffic against a server, of kinds that leave a trace in every metric."""

import random
import threading
import time

import grpc

from api import Api, greedy


class Traffic:
    """`clients` threads, each with one request after the other, while it is used as a context
    manager.
    """

    def __init__(self, address, clients=6, prompt=700, answer=40):
        self.address, self.prompt, self.answer = address, prompt, answer
        self.stopping = threading.Event()
        self.results = []
        self.threads = [
            threading.Thread(target=self.run, args=(seed,), daemon=True) for seed in range(clients)
        ]

    def run(self, seed):
        rng = random.Random(seed)
        api = Api(self.address)
        shared = [rng.randrange(1000, 40000) for _ in range(256)]
        while not self.stopping.is_set():
            tail = [rng.randrange(1000, 40000) for _ in range(self.prompt - len(shared))]
            request = api.request(
                token_ids=shared + tail, sampling=greedy(self.answer, ignore_eos=True)
            )
            began = time.monotonic()
            stream = api.stream(request, timeout=120)
            first, code = None, grpc.StatusCode.OK
            try:
                for response in stream:
                    if self.stopping.is_set():
                        stream.cancel()
                    if first is None and response.WhichOneof("event") == "delta":
                        first = time.monotonic() - began
            except grpc.RpcError as error:
                code = error.code()
            self.results.append((code, first))
        api.close()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
