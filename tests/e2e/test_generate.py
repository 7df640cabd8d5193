"""Answers: right, streamed, reproducible, and ended where they should end."""

import concurrent.futures

import grpc
import pytest

from api import greedy

FRANCE = "The capital of France is"
OK = grpc.StatusCode.OK


def test_greedy_answers_equal_another_implementations(api, golden):
    for case in golden:
        sure = case["sure_ids"]
        result = api.generate(case["prompt"], sampling=greedy(len(sure), ignore_eos=True))
        assert result.status == OK, result.message
        assert result.started.prompt_tokens == len(case["prompt_ids"])
        assert result[0].token_ids == sure, case["prompt"]


def test_text_tokens_and_chat_are_the_same_prompt(api, golden):
    case = next(case for case in golden if case["kind"] == "chat")
    chat = [("user", "What is the capital of Japan? Answer in one sentence.")]
    by_chat = api.generate(chat=chat, sampling=greedy(20))
    by_ids = api.generate(token_ids=case["prompt_ids"], sampling=greedy(20))
    assert by_chat[0].text == by_ids[0].text == "The capital of Japan is Tokyo."
    assert by_chat[0].token_ids == by_ids[0].token_ids
    finished = by_chat[0].finished
    assert (finished.reason, finished.stop_token_id) == (1, 2)
    assert finished.completion_tokens == len(by_chat[0].token_ids)


def test_an_answer_is_streamed_as_it_is_made(api):
    result = api.generate(FRANCE, sampling=greedy(24, ignore_eos=True))
    assert result.status == OK
    assert result.deltas >= 12, "24 tokens came in too few pieces"
    assert result.arrivals[-1] > result.arrivals[0] + 0.02
    assert len(result[0].token_ids) == result[0].finished.completion_tokens == 24
    assert result[0].finished.reason == 2


def test_choices_share_the_prompt_and_differ(api):
    sampling = {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 12, "ignore_eos": True}
    result = api.generate("Once upon a time", sampling=sampling)
    assert result.status == OK, result.message
    assert sorted(result.choices) == [0, 1, 2]
    answers = [tuple(result[i].token_ids) for i in range(3)]
    assert len(set(answers)) > 1, "three samples at temperature 1 are all the same"
    assert all(len(answer) == 12 for answer in answers)
    again = api.generate("Once upon a time", sampling=sampling)
    assert [tuple(again[i].token_ids) for i in range(3)] == answers


def test_greedy_choices_are_equal(api):
    result = api.generate(FRANCE, sampling=greedy(8, n=2))
    assert result[0].token_ids == result[1].token_ids and result[0].text == result[1].text


def test_a_seed_gives_the_same_answer_under_load(api):
    sampling = {
        "temperature": 0.9,
        "top_p": 0.95,
        "seed": 1234,
        "max_tokens": 16,
        "ignore_eos": True,
    }
    alone = api.generate("My favourite animal is", sampling=sampling)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        others = [
            pool.submit(
                api.generate, f"Story number {i}:", sampling={"max_tokens": 24, "ignore_eos": True}
            )
            for i in range(7)
        ]
        loaded = api.generate("My favourite animal is", sampling=sampling)
        assert all(other.result().status == OK for other in others)
    assert loaded[0].token_ids == alone[0].token_ids
    other_seed = api.generate("My favourite animal is", sampling={**sampling, "seed": 1235})
    assert other_seed[0].token_ids != alone[0].token_ids


@pytest.mark.parametrize(
    "stop, include, text",
    [
        ("answer is", False, " Paris.\n\nThe "),  # across tokens
        ("answer is", True, " Paris.\n\nThe answer is"),
        ("ris", False, " Pa"),  # inside a token
        (".\n\nT", False, " Paris"),  # across tokens, ending inside one
    ],
)
def test_stop_strings_end_the_text_before_or_after_the_match(api, stop, include, text):
    result = api.generate(FRANCE, sampling=greedy(20, stop=["never", stop], include_stop=include))
    assert result.status == OK
    assert result[0].text == text
    assert (result[0].finished.reason, result[0].finished.stop_string) == (1, stop)


def test_stop_ids_and_token_limits(api, golden):
    ids = golden[0]["sure_ids"]
    result = api.generate(FRANCE, sampling=greedy(20, stop_token_ids=[ids[5]]))
    assert (result[0].finished.reason, result[0].finished.stop_token_id) == (1, ids[5])
    assert result[0].token_ids[:5] == ids[:5]
    result = api.generate(FRANCE, sampling=greedy(3))
    assert (result[0].token_ids, result[0].finished.reason) == (ids[:3], 2)

    japan = [("user", "What is the capital of Japan? Answer in one sentence.")]
    ended = api.generate(chat=japan, sampling=greedy(20))
    more = api.generate(chat=japan, sampling=greedy(20, ignore_eos=True))
    assert len(more[0].token_ids) == 20 > len(ended[0].token_ids)
    least = api.generate(chat=japan, sampling=greedy(20, min_tokens=15))
    assert len(least[0].token_ids) >= 15


def test_logprobs(api, golden):
    case = golden[0]
    result = api.generate(FRANCE, sampling=greedy(6, logprobs=3))
    answer = result[0]
    assert len(answer.logprobs) == len(answer.token_ids) == 6
    for token, entry, reference in zip(answer.token_ids, answer.logprobs, case["logprob_per_step"]):
        assert entry.token_id == token
        assert abs(entry.logprob - reference) < 0.05
        assert len(entry.top) == 3
        assert (entry.top[0].token_id, entry.top[0].logprob) == (token, entry.logprob)
        assert entry.top[0].logprob >= entry.top[1].logprob >= entry.top[2].logprob
    own = api.generate(FRANCE, sampling=greedy(2, logprobs=0))
    assert [len(entry.top) for entry in own[0].logprobs] == [0, 0]
    assert not api.generate(FRANCE, sampling=greedy(2))[0].logprobs


def test_prompt_logprobs(api):
    result = api.generate(FRANCE, sampling=greedy(1, prompt_logprobs=2))
    ids = api.call("Tokenize", text=FRANCE).token_ids
    assert [entry.token_id for entry in result.prompt_logprobs] == list(ids[1:])
    assert all(entry.logprob <= 0 and len(entry.top) == 2 for entry in result.prompt_logprobs)
    # " is" after "The capital of France" is likely.
    assert result.prompt_logprobs[-1].logprob > -3


def test_penalties_and_bias_change_the_answer(api, golden):
    first = golden[0]["sure_ids"][0]
    banned = api.generate(FRANCE, sampling=greedy(1, logit_bias={first: -100.0}))
    assert banned[0].token_ids[0] != first
    forced = api.generate(FRANCE, sampling=greedy(1, logit_bias={42: 100.0}))
    assert forced[0].token_ids == [42]
    plain = api.generate("1 1 1 1 1 1 1 1", sampling=greedy(12, ignore_eos=True))
    penalised = api.generate(
        "1 1 1 1 1 1 1 1", sampling=greedy(12, ignore_eos=True, repetition_penalty=2.0)
    )
    assert len(set(penalised[0].token_ids)) > len(set(plain[0].token_ids))


def test_long_prompts_hit_the_prefix_cache_and_answer_alike(api):
    prompt = "The quick brown fox jumps over the lazy dog. " * 40
    first = api.generate(prompt + "One:", sampling=greedy(4))
    second = api.generate(prompt + "One:", sampling=greedy(4))
    assert first.started.prompt_tokens > 300
    assert second.started.cached_tokens >= 256
    assert second[0].token_ids == first[0].token_ids


def test_unicode_is_never_split(api):
    chat = [("user", "Repeat exactly: 東京は日本の首都です 🤖🦀🎉")]
    result = api.generate(chat=chat, sampling=greedy(40))
    assert result.status == OK
    text = api.call("Detokenize", token_ids=result[0].token_ids, skip_special_tokens=True).text
    assert result[0].text == text
