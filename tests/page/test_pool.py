"""The view of the pool while it fills and shrinks, by day, by night and in a narrow window."""

import hashlib
import re

import pytest

from server import Server, eventually


def picture(page, selector):
    return hashlib.sha256(page.locator(selector).screenshot()).hexdigest()


def formats(page):
    return page.locator("#formats").inner_text()


def blocks(page):
    return page.locator("#map").get_attribute("aria-label")


def ask(page, question):
    """Asks, and waits for the end of a short answer."""
    page.evaluate("document.getElementById('max-tokens').value = '30'")
    page.locator("#question").fill(question)
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop:visible")
    page.wait_for_selector("#send:visible")


# Counts the frames that the page waits for at one time.
COUNT_FRAMES = """() => {
  const ask = window.requestAnimationFrame.bind(window);
  let waiting = 0;
  window.mostFrames = 0;
  window.requestAnimationFrame = (paint) => {
    waiting += 1;
    window.mostFrames = Math.max(window.mostFrames, waiting);
    return ask((time) => {
      waiting -= 1;
      paint(time);
    });
  };
}"""


def fill(page):
    """Starts a load that lasts, and waits until blocks have shrunk."""
    page.locator("#load-tokens").fill("1000")
    page.get_by_role("button", name="Start load").click()
    eventually(lambda: "4 bit: " in formats(page), 180, "pages of 4 bit")


def test_memory_ebbs_and_comes_back(fresh_server, other_tab, shots):
    # The prefix cache of the other server holds what other tests asked.
    server, page = fresh_server, other_tab(fresh_server.api).page
    before = picture(page, "#map")
    assert re.fullmatch(r"(Groups of b|B)locks: (none|\d+ at 16 bit)", blocks(page)), blocks(page)
    page.evaluate(COUNT_FRAMES)
    settled = int(page.locator("#load-tokens").input_value())
    assert settled >= 64, "it fits the pool"
    ask(page, "What is the capital of Japan?")
    fill(page)
    assert server.total("ebb:kv_shrinks_total") > 0
    assert picture(page, "#map") != before
    assert "below 4 bit" in blocks(page) or "4 to 8 bit" in blocks(page), blocks(page)
    rows = page.locator("#requests tr")
    assert rows.count() >= 8 and "decode" in page.locator("#requests").inner_text()
    assert int(page.locator("#running").inner_text()) > 0
    assert float(page.locator("#rate").inner_text()) > 0
    assert float(page.locator("#mean").inner_text()) < 16
    assert "promised at the floor" in page.locator("#promise").inner_text()
    # However often it is painted, one frame at most is asked for at a time.
    assert page.evaluate("mostFrames") == 1
    # One of them asked for its blocks to stand out.
    rows.first.hover()
    assert page.locator("#requests tr.pointed").count() == 1
    page.locator("#map").hover(position={"x": 20, "y": 180})
    eventually(lambda: "request" in page.locator("#pointed").inner_text(), 5, "what is there")
    page.mouse.move(5, 5)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(1200)
        page.screenshot(path=shots / f"page-{scheme}.png")
    # A chat beside it is not left out.
    ask(page, "And of France?")
    assert "tokens/s" in page.locator(".said.assistant footer").nth(1).inner_text()
    page.get_by_role("button", name="Stop load").click()
    server.idle(60)
    eventually(lambda: page.locator("#running").inner_text() == "0", 20, "no request runs")
    assert "No request runs." in page.locator("#requests").inner_text()
    assert "stopped after" in page.locator("#load-state").inner_text()


def test_a_look_tells_no_text_and_adds_up(tab, server):
    fill(tab.page)
    status, look, headers = server.ask("/kv_pool")
    tab.page.get_by_role("button", name="Stop load").click()
    assert (status, headers["content-type"]) == (200, "application/json")
    kinds = [look["shared"], look["others"], look["cached"]]
    kinds += [row["cells"] for row in look["sequences"]]
    held = sum(frames for cells in kinds for _, frames in cells)
    assert held + look["frames_free"] + look["frames_in_steps"] == look["frames"]
    assert look["frames"] * look["frame_bytes"] == look["bytes_total"]
    bits = [bits for cells in kinds for bits, _ in cells]
    assert 2 <= min(bits) < 16 and max(bits) == 16
    assert "Story" not in str(look) and "tide" not in str(look)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_scheme_of_the_system_is_taken(other_tab, scheme):
    page = other_tab(color_scheme=scheme).page
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    sum_of_parts = sum(int(part) for part in back.strip("rgb()").split(","))
    assert (sum_of_parts < 200) == (scheme == "dark"), back


@pytest.mark.parametrize("width", [320, 390, 800, 1100])
def test_a_narrow_window_scrolls_one_way_only(other_tab, shots, width):
    page = other_tab(viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=shots / f"page-{width}.png", full_page=True)


def test_the_page_says_that_the_server_is_gone_and_comes_back_with_it(other_tab):
    with Server(kv_memory="16MiB") as short_lived:
        tab = other_tab(short_lived.api)
        port = short_lived.api.rsplit(":", 1)[1]
    tab.page.wait_for_selector("#server[data-state=bad]")
    assert "cannot be reached" in tab.page.locator("#server").inner_text()
    with Server("--http-port", port, kv_memory="16MiB"):
        tab.page.wait_for_selector("#server[data-state=ready]")
        # The browser notes every call without an answer, and those while the model is loaded.
        assert tab.complaints
        noted = [text for text in tab.complaints if "net::ERR_" in text or " 503 " in text]
        assert noted == tab.complaints
        tab.complaints.clear()
        tab.close()


def test_a_fault_of_the_script_is_told_as_one(tab):
    page = tab.page
    with page.expect_event("pageerror"):
        page.route("**/kv_pool", lambda route: route.fulfill(json={}))
    assert "cannot be reached" not in page.locator("#server").inner_text()
    page.unroute("**/kv_pool")
    page.wait_for_selector("#server[data-state=ready]")
    assert tab.complaints
    tab.complaints.clear()


def test_without_ui_there_is_no_page():
    with Server("--no-ui", kv_memory="16MiB") as server:
        assert [server.status(path) for path in ("/", "/page/page.js", "/kv_pool")] == [404] * 3
        assert server.status("/v1/models") == 200
