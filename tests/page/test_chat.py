"""The chat, by keys and by clicks, and what the server then did."""

import json
import re

from server import Server, eventually

ENDED = "ebb:requests_ended_total"


def ask(page, text):
    page.locator("#question").fill(text)
    page.keyboard.press("Enter")


def settings(page, **fields):
    if not page.locator("#fields").is_visible():
        page.get_by_text("Settings").click()
    for name, value in fields.items():
        page.locator(f"#{name.replace('_', '-')}").fill(value)


def footer(page, answer=-1):
    return page.locator(".said.assistant footer").nth(answer)


def finished(page):
    """Waits for the end of the answer."""
    page.wait_for_selector("#send:visible")


def test_a_question_by_keyboard_streams_an_answer_that_tells_its_bits(tab):
    page = tab.page
    page.evaluate("document.getElementById('temperature').value = '0'")
    # The question has the focus, and Shift+Enter only breaks the line.
    page.keyboard.type("Tell me a long story")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("about the sea.")
    assert page.locator("#question").input_value().count("\n") == 1
    page.keyboard.press("Enter")
    answer = page.locator(".said.assistant p")
    lengths = []
    eventually(lambda: len(answer.inner_text()) > 0, 60, "the first words")
    while page.locator("#stop").is_visible():
        lengths.append(len(answer.inner_text()))
    assert lengths == sorted(lengths) and len(set(lengths)) > 3, "it comes piece by piece"
    told = footer(page).inner_text()
    for part in ("read at 16 bit on average", "lowest 16 bit", "cached", "tokens/s"):
        assert part in told, told
    assert page.locator(".said.user").inner_text() == "Tell me a long story\nabout the sea."
    # The next question comes after all that was said.
    settings(page, max_tokens="3")
    ask(page, "And then?")
    finished(page)
    roles = [message["role"] for message in tab.asked("/v1/chat/completions")[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".said").count() == 0


def test_stop_ends_the_request_in_the_server(tab, server):
    page = tab.page
    settings(page, temperature="0", max_tokens="")
    stops = [
        lambda: page.keyboard.press("Escape"),
        lambda: page.get_by_role("button", name="Stop", exact=True).click(),
    ]
    for i, stop in enumerate(stops):
        aborted = server.value(ENDED, outcome="aborted")
        ask(page, "Write a very long story about the sea, with many chapters.")
        eventually(lambda i=i: page.locator(".said.assistant p").nth(i).inner_text(), 60, "text")
        stop()
        finished(page)
        assert footer(page).inner_text() == "stopped"
        server.idle()
        assert server.value(ENDED, outcome="aborted") == aborted + 1
    page.get_by_role("button", name="Send").wait_for()


def test_settings_reach_the_server(tab):
    page = tab.page
    settings(
        page,
        max_tokens="5",
        temperature="0",
        top_p="0.9",
        top_k="40",
        seed="7",
        system="Answer in one word.",
    )
    page.locator("#bits").select_option("16")
    ask(page, "Tell me a long story.")
    finished(page)
    (body,) = tab.asked("/v1/chat/completions")
    assert body["messages"][0] == {"role": "system", "content": "Answer in one word."}
    sent = {name: body[name] for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")}
    assert sent == {"max_tokens": 5, "temperature": 0, "top_p": 0.9, "top_k": 40, "seed": 7}
    assert body["min_kv_bits"] == 16
    told = footer(page).inner_text()
    assert re.search(r"\b5 tokens, ", told) and "cut at the most tokens" in told, told


def test_a_refusal_is_told_and_the_question_can_be_mended(tab):
    page = tab.page
    settings(page, top_p="7", max_tokens="5")
    ask(page, "Hello")
    finished(page)
    assert "top_p" in footer(page).inner_text()
    # The browser notes every answer that is no success.
    assert [text for text in tab.complaints if "400" in text] == tab.complaints
    tab.complaints.clear()
    settings(page, top_p="0.5")
    ask(page, "Hello again")
    finished(page)
    assert "tokens/s" in footer(page).inner_text()
    assert len(tab.asked("/v1/chat/completions")[-1]["messages"]) == 1


def test_what_is_said_is_text_and_no_markup(tab):
    page = tab.page
    settings(page, max_tokens="4")
    ask(page, "<img src=x onerror=\"document.title='gone'\"><b>bold</b>")
    finished(page)
    assert page.locator(".said img, .said b").count() == 0
    assert page.title() == "Ebb"


def test_what_the_model_says_is_text_and_no_markup(tab):
    page = tab.page
    said = "<img src=x onerror=\"document.title='gone'\"><script>document.title='gone'</script>"
    choices = [{"index": 0, "delta": {"content": piece}} for piece in (said[:20], said[20:])]
    stream = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)
    # No model says this when asked, so the browser takes it for the server's answer.
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            content_type="text/event-stream", body=stream + "data: [DONE]\n\n"
        ),
    )
    ask(page, "Hello")
    finished(page)
    assert page.locator(".said.assistant p").inner_text() == said
    assert page.locator(".said img, .said script").count() == 0
    assert page.title() == "Ebb"


def test_one_token_has_no_rate(tab):
    page = tab.page
    settings(page, max_tokens="1", temperature="0")
    ask(page, "Tell me a long story.")
    finished(page)
    told = footer(page).inner_text()
    assert re.search(r"\b1 token\b", told) and "tokens/s" not in told, told


def test_the_focus_stays_on_the_button_that_takes_the_place_of_the_pressed_one(tab):
    page = tab.page

    def focused(name):
        eventually(lambda: page.evaluate("document.activeElement.id") == name, 60, name)

    settings(page, temperature="0", max_tokens="")
    page.locator("#question").fill("Write a very long story about the sea, with many chapters.")
    page.locator("#question").focus()
    page.keyboard.press("Tab")
    focused("send")
    page.keyboard.press("Enter")
    focused("stop")
    eventually(lambda: page.locator(".said.assistant p").inner_text(), 60, "text")
    page.keyboard.press("Escape")
    focused("send")
    assert footer(page).inner_text() == "stopped"
    page.locator("#load-start").focus()
    page.keyboard.press("Enter")
    focused("load-stop")
    eventually(lambda: page.locator("#running").inner_text() != "0", 60, "the load runs")
    page.keyboard.press("Enter")
    focused("load-start")
    assert "stopped after" in page.locator("#load-state").inner_text()


def test_a_key_is_sent_and_kept_in_this_tab_alone(tab):
    page = tab.page
    settings(page, max_tokens="2", key="a-secret")
    ask(page, "Hello")
    finished(page)
    posts = [request for request in tab.requests if request.method == "POST"]
    assert posts[-1].headers["authorization"] == "Bearer a-secret"
    kept = page.evaluate("[localStorage.length, document.cookie, Object.values(sessionStorage)]")
    assert kept == [0, "", ["a-secret"]]
    page.reload()
    assert page.locator("#key").input_value() == "a-secret"
    settings(page, key="")
    page.locator("#question").focus()
    assert page.evaluate("sessionStorage.length") == 0


def test_every_control_has_a_name_and_tab_reaches_it(tab):
    page = tab.page
    settings(page)
    controls = "button:visible, input:visible, select:visible, textarea:visible"
    for control in page.locator(controls).all():
        assert control.evaluate("c => (c.labels?.[0]?.innerText ?? c.innerText).trim()"), control
    wanted = set(page.eval_on_selector_all(controls, "all => all.map((c) => c.id)"))
    wanted = {name for name in wanted if page.locator(f"#{name}").is_visible()}
    page.locator("body").evaluate("body => document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert wanted <= reached, wanted - reached


def test_with_keys_the_pool_is_seen_by_all_and_the_chat_asks_for_one(other_tab):
    with Server("--api-key", "a-secret-of-this-test", kv_memory="16MiB") as server:
        tab = other_tab(server.api)
        page = tab.page
        settings(page, max_tokens="3")
        ask(page, "Hello")
        finished(page)
        assert "API key" in footer(page).inner_text()
        # The browser notes every answer that is no success.
        assert [text for text in tab.complaints if "401" in text] == tab.complaints
        tab.complaints.clear()
        assert page.locator("#running").inner_text() == "0", "the pool is seen"
        settings(page, key="a-secret-of-this-test")
        ask(page, "Hello")
        finished(page)
        assert "read at 16 bit" in footer(page).inner_text()
        page.get_by_role("button", name="Start load").click()
        eventually(lambda: page.locator("#running").inner_text() != "0", 60, "the load runs")
        page.get_by_role("button", name="Stop load").click()
        tab.close()
