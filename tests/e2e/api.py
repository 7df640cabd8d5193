"""A gRPC client of ebb.v1 that knows nothing but what the server's reflection tells it."""

import time

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

SERVICE = "ebb.v1.Ebb"


class Answer:
    """One choice of a Generate call, put together from its events."""

    def __init__(self):
        self.text = ""
        self.token_ids = []
        self.logprobs = []
        self.finished = None


class Result:
    """A whole Generate call."""

    def __init__(self):
        self.started = None
        self.prompt_logprobs = []
        self.choices = {}
        self.deltas = 0
        self.arrivals = []
        self.status = None
        self.message = ""

    def add(self, response):
        """Takes in one event, checking the order that the API promises."""
        event = response.WhichOneof("event")
        value = getattr(response, event)
        if event == "started":
            assert self.started is None, "started twice"
            self.started = value
            return
        assert self.started is not None, f"{event} before started"
        if event == "prompt_logprobs":
            assert not self.deltas, "prompt log-probabilities after a delta"
            self.prompt_logprobs.extend(value.tokens)
            return
        choice = self.choices.setdefault(value.choice, Answer())
        assert choice.finished is None, f"{event} after the end of choice {value.choice}"
        if event == "delta":
            self.deltas += 1
            self.arrivals.append(time.monotonic())
            choice.text += value.text
            choice.token_ids.extend(value.token_ids)
            choice.logprobs.extend(value.logprobs)
        else:
            choice.finished = value

    def __getitem__(self, index):
        return self.choices[index]


class Api:
    """Calls every method of the service by name, with messages from the served descriptors."""

    def __init__(self, address, options=(), credentials=None, metadata=()):
        # A channel of its own connection, not one shared within the process.
        options = [("grpc.use_local_subchannel_pool", 1), *options]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options=options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options=options)
        self.metadata = metadata
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)
        self.service = self.pool.FindServiceByName(SERVICE)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def close(self):
        self.channel.close()

    def message(self, name, **fields):
        """A message of the package by name."""
        descriptor = self.pool.FindMessageTypeByName(f"ebb.v1.{name}")
        return message_factory.GetMessageClass(descriptor)(**fields)

    def _method(self, name):
        method = self.service.FindMethodByName(name)
        connect = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        reply = message_factory.GetMessageClass(method.output_type)
        return connect(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )

    def call(self, name, timeout=30, **fields):
        """A unary call."""
        message = self.message(f"{name}Request", **fields)
        return self._method(name)(message, timeout=timeout, metadata=self.metadata)

    def start(self, name, timeout=120, **fields):
        """A unary call under way: a future."""
        message = self.message(f"{name}Request", **fields)
        return self._method(name).future(message, timeout=timeout, metadata=self.metadata)

    def request(self, text=None, token_ids=None, chat=None, sampling=None, **fields):
        """A GenerateRequest; `chat` is a list of (role, content)."""
        if text is not None:
            fields["text"] = text
        if token_ids is not None:
            fields["token_ids"] = {"ids": token_ids}
        if chat is not None:
            fields["chat"] = {
                "messages": [{"role": role, "content": content} for role, content in chat]
            }
        return self.message("GenerateRequest", sampling=sampling or {}, **fields)

    def stream(self, request, timeout=None):
        """The raw stream of a Generate call."""
        return self._method("Generate")(request, timeout=timeout, metadata=self.metadata)

    def generate(self, text=None, timeout=60, **fields):
        """A Generate call to its end; its status is in the result, never raised."""
        return collect(self.stream(self.request(text, **fields), timeout=timeout))

    def healthy(self, service=""):
        """Whether the health service says SERVING."""
        reply = self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return reply.status == health_pb2.HealthCheckResponse.SERVING


def collect(stream, result=None):
    """Reads a stream to its end."""
    result = result or Result()
    try:
        for response in stream:
            result.add(response)
        result.status = grpc.StatusCode.OK
    except grpc.RpcError as error:
        result.status = error.code()
        result.message = error.details()
    return result


def greedy(max_tokens, **more):
    """Sampling parameters that always take the likeliest token."""
    return {"temperature": 0.0, "max_tokens": max_tokens, **more}
