"""Anthropic's official client, unmodified, against the HTTP API; the gRPC API is the reference."""

import anthropic
import pytest

from api import greedy

JAPAN = "What is the capital of Japan? Answer in one sentence."
NAME = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def claude(server):
    """The official client, pointed at the server."""
    url = f"http://{server.api}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def ask(claude, content=JAPAN, **options):
    # Newer clients have no arguments for sampling; the API has.
    body = {"temperature": 0, **options.pop("extra_body", {})}
    options = {"model": NAME, "max_tokens": 20, "extra_body": body, **options}
    messages = [{"role": "user", "content": content}]
    return claude.messages.create(messages=messages, **options)


def test_an_answer_is_what_grpc_answers(claude, api):
    theirs = api.generate(chat=[("user", JAPAN)], sampling=greedy(20))
    message = ask(claude)
    (block,) = message.content
    assert (block.type, block.text) == ("text", theirs[0].text)
    assert (message.role, message.stop_reason, message.model) == ("assistant", "end_turn", NAME)
    usage = message.usage
    assert (
        usage.input_tokens + usage.cache_read_input_tokens == theirs.started.prompt_tokens
        and usage.output_tokens == theirs[0].finished.completion_tokens
    )
    assert message.ebb == {"lowest_kv_bits": 16, "mean_kv_bits": 16.0}
    assert message._request_id.startswith("req_")
    assert ask(claude, [{"type": "text", "text": JAPAN}]).content[0].text == block.text
    short = ask(claude, max_tokens=2)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    stopped = ask(claude, stop_sequences=["Tok"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Tok")
    assert stopped.content[0].text == "The capital of Japan is "


def test_the_system_prompt_comes_first(claude, api):
    chat = [("system", "Answer in French."), ("user", JAPAN)]
    theirs = api.generate(chat=chat, sampling=greedy(20))[0].text
    for system in ("Answer in French.", [{"type": "text", "text": "Answer in French."}]):
        assert ask(claude, system=system).content[0].text == theirs


def test_an_answer_that_was_begun_goes_on(claude):
    whole = ask(claude).content[0].text
    messages = [
        {"role": "user", "content": JAPAN},
        {"role": "assistant", "content": whole[:14]},
    ]
    body = {"temperature": 0}
    message = claude.messages.create(model=NAME, max_tokens=20, messages=messages, extra_body=body)
    assert whole[:14] + message.content[0].text == whole


def test_an_answer_in_pieces_is_the_same(claude):
    whole = ask(claude)
    options = {"model": NAME, "max_tokens": 20, "extra_body": {"temperature": 0}}
    messages = [{"role": "user", "content": JAPAN}]
    with claude.messages.stream(messages=messages, **options) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1 and "".join(pieces) == whole.content[0].text
    assert final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (
        "end_turn",
        whole.usage.output_tokens,
    )


def test_tokens_are_counted(claude, api):
    messages = [{"role": "user", "content": JAPAN}]
    count = claude.messages.count_tokens(model=NAME, messages=messages)
    ids = api.call("Tokenize", chat={"messages": messages}).token_ids
    assert count.input_tokens == len(ids)


def test_mistakes_have_anthropics_shape(claude):
    for field, options in [
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 9_000}),
        ("stop_sequences[0]", {"stop_sequences": [""]}),
        ("temperature", {"extra_body": {"temperature": -1}}),
        ("min_kv_bits", {"extra_body": {"min_kv_bits": 3}}),
        ("tools", {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}),
        ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ]:
        with pytest.raises(anthropic.BadRequestError) as error:
            ask(claude, **options)
        body = error.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert body["error"]["message"].startswith(field)
    with pytest.raises(anthropic.NotFoundError) as error:
        ask(claude, model="claude-none")
    assert error.value.body["error"]["type"] == "not_found_error"


def test_a_client_that_leaves_frees_its_place(claude, server):
    server.idle()
    with ask(claude, "Tell a long story.", max_tokens=2000, stream=True) as stream:
        names = [event.type for event, _ in zip(stream, range(4))]
    assert names[0] == "message_start"
    server.idle(2)
