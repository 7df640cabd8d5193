"""The Responses API by OpenAI's official client; the gRPC API is the reference."""

import openai
import pytest

from api import greedy

JAPAN = "What is the capital of Japan? Answer in one sentence."
NAME = "SmolLM2-135M-Instruct"


def respond(client, content=JAPAN, **options):
    options = {"model": NAME, "temperature": 0, "max_output_tokens": 20, "store": False, **options}
    return client.responses.create(input=content, **options)


def test_a_response_is_what_grpc_answers(client, api):
    theirs = api.generate(chat=[("user", JAPAN)], sampling=greedy(20))
    response = respond(client)
    assert response.output_text == theirs[0].text
    assert (response.status, response.object, response.store) == ("completed", "response", False)
    assert response.usage.input_tokens == theirs.started.prompt_tokens
    assert response.usage.output_tokens == theirs[0].finished.completion_tokens
    assert response.ebb == {"lowest_kv_bits": 16, "mean_kv_bits": 16.0}
    items = [{"role": "user", "content": [{"type": "input_text", "text": JAPAN}]}]
    assert respond(client, items).output_text == response.output_text
    short = respond(client, max_output_tokens=2)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_instructions_and_earlier_answers_are_part_of_the_conversation(client, api):
    chat = [("system", "Answer in French."), ("user", JAPAN)]
    theirs = api.generate(chat=chat, sampling=greedy(20))[0].text
    first = respond(client, instructions="Answer in French.")
    assert first.output_text == theirs
    # What came back can be sent back.
    question = {"role": "user", "content": "Are you sure?"}
    items = [{"role": "user", "content": JAPAN}, *first.output, question]
    chat = [("user", JAPAN), ("assistant", theirs), ("user", "Are you sure?")]
    theirs = api.generate(chat=chat, sampling=greedy(20))[0].text
    assert respond(client, items).output_text == theirs


def test_a_response_in_pieces_is_the_same(client):
    whole = respond(client)
    with client.responses.stream(
        model=NAME, input=JAPAN, temperature=0, max_output_tokens=20
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    names = [event.type for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed" and names.count("response.output_text.delta") > 1
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == whole.output_text
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    plain = list(respond(client, stream=True))
    assert plain[-1].response.output_text == whole.output_text


def test_log_probabilities_come_when_asked_for(client, api):
    theirs = api.generate(chat=[("user", JAPAN)], sampling=greedy(4, logprobs=1))[0]
    include = ["message.output_text.logprobs"]
    response = respond(client, max_output_tokens=4, include=include, top_logprobs=1)
    logprobs = response.output[0].content[0].logprobs
    assert [pytest.approx(entry.logprob) for entry in theirs.logprobs] == [
        token.logprob for token in logprobs
    ]
    assert all(len(token.top_logprobs) == 1 for token in logprobs)


def test_mistakes_are_named(client):
    for param, options in [
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("tools", {"tools": [{"type": "web_search"}]}),
        ("reasoning.effort", {"reasoning": {"effort": "high"}}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("background", {"background": True}),
    ]:
        with pytest.raises(openai.BadRequestError) as error:
            respond(client, **options)
        assert error.value.param == param
    with pytest.raises(openai.BadRequestError) as error:
        image = [{"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"}]
        respond(client, [{"role": "user", "content": image}])
    assert error.value.param == "input[0].content[0]"


def test_a_client_that_leaves_frees_its_place(client, server):
    server.idle()
    stream = respond(client, "Tell a long story.", max_output_tokens=2000, stream=True)
    for event in stream:
        if event.type == "response.output_text.delta":
            break
    stream.close()
    server.idle(2)
