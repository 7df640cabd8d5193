"""OpenAI's official client, unmodified, against the HTTP API; the gRPC API is the reference."""

import asyncio
import math
import signal
import threading
import time

import openai
import pytest

from api import Api, greedy
from server import Server

FRANCE = "The capital of France is"
JAPAN = "What is the capital of Japan? Answer in one sentence."
CHAT = [{"role": "user", "content": JAPAN}]
NAME = "SmolLM2-135M-Instruct"


def chat(client, content=JAPAN, **options):
    messages = [{"role": "user", "content": content}]
    options = {"model": NAME, "temperature": 0, "max_tokens": 20, **options}
    return client.chat.completions.create(messages=messages, **options)


def complete(client, prompt=FRANCE, **options):
    options = {"model": NAME, "temperature": 0, "max_tokens": 8, **options}
    return client.completions.create(prompt=prompt, **options)


def close(ours, theirs):
    """JSON has the shortest text of a float, gRPC its bits."""
    return math.isclose(ours, theirs, rel_tol=1e-6)


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (NAME, "model", "ebb")
    assert model.max_model_len == 8192
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("org/other")
    assert error.value.code == "model_not_found"


def test_a_chat_is_what_grpc_answers(client, api):
    theirs = api.generate(chat=[("user", JAPAN)], sampling=greedy(20))
    answer = chat(client, extra_body={"return_token_ids": True})
    (choice,) = answer.choices
    assert choice.message.content == theirs[0].text == "The capital of Japan is Tokyo."
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert choice.token_ids == theirs[0].token_ids
    assert answer.prompt_token_ids == list(api.call("Tokenize", chat={"messages": CHAT}).token_ids)
    usage = answer.usage
    assert usage.prompt_tokens == theirs.started.prompt_tokens
    assert usage.completion_tokens == theirs[0].finished.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    assert (answer.model, choice.stop_reason) == (NAME, None)
    assert choice.ebb == {"lowest_kv_bits": 16, "mean_kv_bits": 16.0}
    assert answer._request_id.startswith("req_")
    # Parts of text are text.
    parts = [{"type": "text", "text": JAPAN}]
    assert chat(client, parts).choices[0].message.content == choice.message.content
    assert chat(client, max_completion_tokens=2).usage.completion_tokens == 2


def test_a_chat_in_pieces_is_the_same(client):
    whole = chat(client)
    with chat(client, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    first, *_, end, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(pieces) == whole.choices[0].message.content
    # A server that is late puts tokens together.
    assert len(pieces) > 3
    assert end.choices[0].finish_reason == "stop" and end.choices[0].ebb["lowest_kv_bits"] == 16
    assert not usage.choices
    assert usage.usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {first.id}
    assert all(chunk.usage is None for chunk in chunks[:-1])
    # The client's own accumulation of a stream understands it.
    with client.chat.completions.stream(model=NAME, messages=CHAT, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.content == "".join(pieces)


def test_prompts_are_texts_or_token_ids(client, api):
    ids = list(api.call("Tokenize", text=FRANCE).token_ids)
    theirs = api.generate(FRANCE, sampling=greedy(8))[0]
    answer = complete(client, extra_body={"return_token_ids": True})
    assert answer.choices[0].text == theirs.text
    assert answer.choices[0].token_ids == theirs.token_ids
    assert answer.choices[0].prompt_token_ids == ids
    assert (answer.object, answer.choices[0].finish_reason) == ("text_completion", "length")
    assert complete(client, ids).choices[0].text == theirs.text
    other = api.generate("1, 2, 3,", sampling=greedy(8))[0].text
    for prompts in (
        [FRANCE, "1, 2, 3,"],
        [ids, list(api.call("Tokenize", text="1, 2, 3,").token_ids)],
    ):
        both = complete(client, prompts)
        assert [choice.text for choice in both.choices] == [theirs.text, other]
        assert [choice.index for choice in both.choices] == [0, 1]
        texts = ["", ""]
        for chunk in complete(client, prompts, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [theirs.text, other]
    # OpenAI's default.
    sixteen = client.completions.create(model=NAME, prompt=FRANCE)
    assert sixteen.usage.completion_tokens <= 16


OPTIONS = [
    ({"temperature": 0.9, "seed": 7, "top_p": 0.9}, {"temperature": 0.9, "seed": 7, "top_p": 0.9}),
    ({"temperature": 1, "seed": 7, "extra_body": {"top_k": 3}}, {"seed": 7, "top_k": 3}),
    ({"temperature": 1, "seed": 7, "extra_body": {"min_p": 0.3}}, {"seed": 7, "min_p": 0.3}),
    ({"logit_bias": {"42": 100}}, {"logit_bias": {42: 100.0}}),
    ({"presence_penalty": 2}, {"presence_penalty": 2.0}),
    ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
    ({"extra_body": {"repetition_penalty": 1.5}}, {"repetition_penalty": 1.5}),
    ({"stop": "1"}, {"stop": ["1"]}),
    ({"stop": ["never", "3,"]}, {"stop": ["never", "3,"]}),
    (
        {"stop": "3,", "extra_body": {"include_stop_str_in_output": True}},
        {"stop": ["3,"], "include_stop": True},
    ),
    ({"stop": "3,", "extra_body": {"min_tokens": 10}}, {"stop": ["3,"], "min_tokens": 10}),
    (
        {"extra_body": {"ignore_eos": True}, "max_tokens": 40},
        {"ignore_eos": True, "max_tokens": 40},
    ),
    ({"extra_body": {"stop_token_ids": [33]}}, {"stop_token_ids": [33]}),
    (
        {"logit_bias": {"1": 100}, "extra_body": {"skip_special_tokens": False}},
        {"logit_bias": {1: 100.0}, "skip_special_tokens": False},
    ),
    ({"extra_body": {"min_kv_bits": 16, "priority": -3}}, {}),
    ({"user": "me", "extra_body": {"metadata": {"a": "b"}, "no_such_field": 1}}, {}),
]


@pytest.mark.parametrize("ours, theirs", OPTIONS, ids=[str(theirs) for _, theirs in OPTIONS])
def test_every_option_means_what_it_means_to_grpc(client, api, ours, theirs):
    prompt = "1, 2, 3, 4, 1, 2, 3, 4, 1, 2,"
    theirs = {"max_tokens": 12, "temperature": 1.0 if "seed" in theirs else 0.0, **theirs}
    theirs = api.generate(prompt, sampling=theirs)[0]
    ours = {"max_tokens": 12, **ours}
    body = {"return_token_ids": True, **ours.pop("extra_body", {})}
    answer = complete(client, prompt, **ours, extra_body=body)
    (choice,) = answer.choices
    assert choice.token_ids == theirs.token_ids
    assert choice.text == theirs.text
    assert choice.finish_reason == ("stop" if theirs.finished.reason == 1 else "length")
    asked = theirs.finished.stop_token_id if theirs.finished.stop_token_id == 33 else None
    assert choice.stop_reason == (theirs.finished.stop_string or asked)
    pieces = list(complete(client, prompt, **ours, extra_body=body, stream=True))
    assert "".join(chunk.choices[0].text for chunk in pieces) == theirs.text


def test_choices_of_one_prompt(client, api):
    sampling = {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 12, "ignore_eos": True}
    theirs = api.generate(chat=[("user", "Tell a story.")], sampling=sampling)
    options = {"n": 3, "seed": 3, "temperature": 1, "max_tokens": 12}
    options["extra_body"] = {"ignore_eos": True}
    answer = chat(client, "Tell a story.", **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [theirs[i].text for i in range(3)]
    assert answer.usage.completion_tokens == 36
    pieces = ["", "", ""]
    for chunk in chat(client, "Tell a story.", **options, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert pieces == texts


def test_logprobs_are_those_of_grpc(client, api):
    theirs = api.generate(FRANCE, sampling=greedy(6, logprobs=3, prompt_logprobs=3))
    answer = complete(client, max_tokens=6, logprobs=3, echo=True)
    (choice,) = answer.choices
    assert choice.text == FRANCE + theirs[0].text
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    for offset, token in zip(logprobs.text_offset, logprobs.tokens):
        assert choice.text[offset:].startswith(token)
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    entries = list(theirs.prompt_logprobs) + list(theirs[0].logprobs)
    assert len(entries) == len(logprobs.tokens) - 1
    for entry, ours, top in zip(entries, logprobs.token_logprobs[1:], logprobs.top_logprobs[1:]):
        assert close(ours, entry.logprob)
        assert 3 <= len(top) <= 4
        assert all(close(a, b.logprob) for a, b in zip(top.values(), entry.top))
    # The same in pieces.
    pieces = [
        chunk.choices[0].logprobs
        for chunk in complete(client, max_tokens=6, logprobs=3, echo=True, stream=True)
    ]
    pieces = [piece for piece in pieces if piece]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [x for piece in pieces for x in getattr(piece, name)] == getattr(logprobs, name)
    # A prompt can be scored alone.
    alone = complete(client, max_tokens=0, logprobs=3, echo=True)
    assert alone.choices[0].text == FRANCE and alone.usage.completion_tokens == 0
    count = len(theirs.prompt_logprobs) + 1
    assert alone.choices[0].logprobs.token_logprobs == logprobs.token_logprobs[:count]
    # vLLM's own field.
    scored = complete(client, max_tokens=1, extra_body={"prompt_logprobs": 2})
    first, *rest = scored.choices[0].prompt_logprobs
    assert first is None
    for entry, by_token in zip(theirs.prompt_logprobs, rest):
        assert close(by_token[str(entry.token_id)]["logprob"], entry.logprob)


def test_logprobs_of_chats_are_those_of_grpc(client, api):
    theirs = api.generate(chat=[("user", JAPAN)], sampling=greedy(5, logprobs=2))[0]
    answer = chat(client, max_tokens=5, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    for entry, token in zip(theirs.logprobs, content):
        assert close(token.logprob, entry.logprob)
        assert bytes(token.bytes).decode() == token.token
        assert [close(a.logprob, b.logprob) for a, b in zip(token.top_logprobs, entry.top)] == [
            True
        ] * 2
    assert b"".join(bytes(token.bytes) for token in content).decode() == theirs.text
    chunks = chat(client, max_tokens=5, logprobs=True, top_logprobs=2, stream=True)
    pieces = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert [token for piece in pieces for token in piece] == content


def test_a_cached_prompt_is_told(client):
    prompt = "The quick brown fox likes the HTTP API. " * 40
    complete(client, prompt, max_tokens=1)
    again = complete(client, prompt, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens >= 256
    for chunk in complete(
        client, prompt, max_tokens=1, stream=True, stream_options={"include_usage": True}
    ):
        pass
    assert chunk.usage.prompt_tokens_details.cached_tokens >= 256


BAD = [
    ("messages", {"messages": []}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "7", "tool_call_id": "a"}]}),
    (
        "messages[0].content[0]",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
                }
            ]
        },
    ),
    ("temperature", {"temperature": -1}),
    ("top_p", {"top_p": 0}),
    ("max_tokens", {"max_tokens": 100_000}),
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("n", {"n": 0}),
    ("stop[1]", {"stop": ["a", ""]}),
    ("logit_bias[49152]", {"logit_bias": {"49152": 1}}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("reasoning_effort", {"reasoning_effort": "high"}),
    ("min_kv_bits", {"extra_body": {"min_kv_bits": 3}}),
    ("chat_template_kwargs", {"extra_body": {"chat_template_kwargs": [1]}}),
    ("temperature", {"extra_body": {"temperature": "hot"}}),
]


@pytest.mark.parametrize("param, options", BAD, ids=[f"{i}-{p}" for i, (p, _) in enumerate(BAD)])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_bad_field_is_named(client, param, options, stream):
    options = {"model": NAME, "messages": CHAT, "stream": stream, **options}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**options)
    assert error.value.param == param
    assert error.value.type == "invalid_request_error"
    assert error.value.body["message"].startswith(param)


def test_bad_prompts_are_named(client):
    for param, prompt in [
        ("prompt", ""),
        ("prompt", []),
        ("prompt[1]", ["a", ""]),
        ("prompt", [1, 49152]),
        ("prompt[1]", [[1], [49152]]),
        ("prompt", [5] * 9000),
    ]:
        with pytest.raises(openai.BadRequestError) as error:
            complete(client, prompt)
        assert error.value.param == param, prompt
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, best_of=2)
    assert error.value.param == "best_of"


def test_other_mistakes_have_their_status(client, server):
    with pytest.raises(openai.NotFoundError) as error:
        chat(client, model="gpt-4o")
    assert (error.value.param, error.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError) as error:
        client.embeddings.create(model=NAME, input="text")
    assert "no embeddings" in error.value.message
    for status, path, body in [
        (404, "/v1/nothing", None),
        (405, "/v1/chat/completions", None),
        (400, "/v1/completions", b"{"),
        (400, "/v1/completions", b"[]"),
        (413, "/v1/completions", {"prompt": "x" * (5 << 20)}),
    ]:
        found, answer, _ = server.ask(path, body)
        assert (found, set(answer["error"])) == (status, {"message", "type", "param", "code"}), path
    found, _, _ = server.ask("/v1/completions", {"prompt": "x"}, **{"Content-Type": "text/plain"})
    assert found == 415


def test_a_client_that_leaves_frees_its_place(client, server):
    server.idle()
    options = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    stream = complete(client, stream=True, **options)
    next(iter(stream))
    stream.close()
    server.idle(2)
    with pytest.raises(openai.APITimeoutError):
        complete(client.with_options(timeout=0.5), **options)
    server.idle(2)
    assert server.value("vllm:kv_cache_usage_perc") == 0


def test_many_streams_at_once(server):
    async def one(client, i):
        stream = await client.completions.create(
            model=NAME,
            prompt=f"Story number {i}:",
            max_tokens=16,
            stream=True,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        return sum([len(getattr(chunk.choices[0], "token_ids", [])) async for chunk in stream])

    async def all_of_them():
        async with openai.AsyncOpenAI(
            base_url=f"http://{server.api}/v1", api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(*(one(client, i) for i in range(32)))

    assert asyncio.run(all_of_them()) == [16] * 32


def test_text_becomes_tokens_and_back(server, api):
    theirs = list(api.call("Tokenize", text=FRANCE).token_ids)
    status, answer, _ = server.ask("/tokenize", {"prompt": FRANCE, "return_token_strs": True})
    assert (status, answer["tokens"], answer["count"]) == (200, theirs, len(theirs))
    assert "".join(answer["token_strs"]) == FRANCE and answer["max_model_len"] == 8192
    status, answer, _ = server.ask("/tokenize", {"model": NAME, "messages": CHAT})
    assert answer["tokens"] == list(api.call("Tokenize", chat={"messages": CHAT}).token_ids)
    status, answer, _ = server.ask("/detokenize", {"tokens": theirs})
    assert (status, answer) == (200, {"prompt": FRANCE})
    status, answer, _ = server.ask("/detokenize", {"tokens": [49152]})
    assert (status, answer["error"]["param"]) == (400, "tokens[0]")


def test_templates_are_told_what_requests_say(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{{ messages[0].content }}{% if thinking %} {{ thinking }}{% endif %}"
        "{% if add_generation_prompt %} answer{% endif %}"
    )
    with Server("--chat-template", template) as server:
        ask = {"messages": [{"role": "user", "content": "Hi"}]}
        for more, text in [
            ({}, "Hi answer"),
            ({"add_generation_prompt": False}, "Hi"),
            ({"chat_template_kwargs": {"thinking": "deep"}}, "Hi deep answer"),
        ]:
            status, answer, _ = server.ask("/tokenize", {**ask, **more})
            assert status == 200, answer
            again = server.ask("/detokenize", {"tokens": answer["tokens"]})[1]
            assert again["prompt"] == text
        more = {"chat_template_kwargs": {"thinking": "deep"}, "max_tokens": 1}
        status, answer, _ = server.ask("/v1/chat/completions", {**ask, **more})
        assert status == 200 and answer["usage"]["prompt_tokens"] == 3


def test_special_tokens_are_in_the_text_where_that_is_asked(client):
    start = {"logit_bias": {"1": 100}, "max_tokens": 2}
    seen = complete(client, **start, extra_body={"skip_special_tokens": False})
    assert seen.choices[0].text == "<|im_start|><|im_start|>"
    assert complete(client, **start).choices[0].text == ""
    # The token that ends an answer is no part of it.
    ended = chat(client, extra_body={"skip_special_tokens": False})
    assert ended.choices[0].message.content == "The capital of Japan is Tokyo."


def test_an_answer_that_was_begun_goes_on(client):
    whole = chat(client).choices[0].message.content
    begun = [*CHAT, {"role": "assistant", "content": whole[:14]}]
    options = {"model": NAME, "messages": begun, "temperature": 0, "max_tokens": 20}
    body = {"continue_final_message": True}
    for more in ({}, {"add_generation_prompt": False}):
        answer = client.chat.completions.create(**options, extra_body={**body, **more})
        assert whole[:14] + answer.choices[0].message.content == whole
    with pytest.raises(openai.BadRequestError) as error:
        wrong = {**body, "add_generation_prompt": True}
        client.chat.completions.create(**options, extra_body=wrong)
    assert error.value.param == "continue_final_message"


def test_the_port_answers_probes_and_tells_what_it_is(server):
    for path in ("/health", "/ping", "/livez", "/readyz", "/metrics"):
        assert server.status(path) == 200, path
    assert server.ask("/version")[1]["version"]
    _, document, _ = server.ask("/openapi.json")
    assert "/v1/chat/completions" in document["paths"]
    assert server.value("ebb:http_requests_total", route="/v1/completions", status="400") > 0


def test_names_a_full_queue_and_a_shutdown():
    flags = [
        "--max-running",
        "1",
        "--max-waiting",
        "1",
        "--served-model-name",
        "org/first",
        "second",
    ]
    with (
        Server(*flags) as server,
        openai.OpenAI(base_url=f"http://{server.api}/v1", api_key="none", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["org/first", "second"]
        assert client.models.retrieve("org/first").root == "org/first"
        api = Api(server.address)
        assert api.call("GetModelInfo").name == "org/first"
        options = {"max_tokens": 60, "extra_body": {"ignore_eos": True}, "stream": True}
        first = complete(client, model="org/first", **options)
        head = next(iter(first))
        assert head.model == "org/first"
        second = complete(client, model="second", **options)
        with pytest.raises(openai.RateLimitError) as error:
            for _ in range(2):
                complete(client, model="second", **options)
        assert error.value.code == "queue_full"
        assert error.value.response.headers["retry-after"] == "1"
        server.signal(signal.SIGTERM)
        server.wait_for("finishing what runs, for at most 30 s; a second signal ends at once")
        until = time.monotonic() + 5
        while server.status("/health") == 200 and time.monotonic() < until:
            time.sleep(0.01)
        assert server.status("/health") == 503
        with pytest.raises(openai.InternalServerError) as error:
            complete(client, model="second")
        assert (error.value.status_code, error.value.code) == (503, "shutting_down")
        both = [None, None]

        def read(i, stream):
            both[i] = [chunk.choices[0].finish_reason for chunk in stream][-1]

        threads = [threading.Thread(target=read, args=pair) for pair in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert both == ["length", "length"]
        assert server.exit_code() == 0
