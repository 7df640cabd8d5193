"""Fixtures: a server with little KV memory, a browser, and a page that may not misbehave."""

import os
import pathlib
import sys

import pytest
from playwright.sync_api import sync_playwright

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from server import Server  # noqa: E402

# What a browser does by itself: nothing of the page.
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def server():
    with Server(kv_memory="48MiB") as server:
        yield server


@pytest.fixture
def fresh_server():
    """A server that nobody has asked anything."""
    with Server(kv_memory="48MiB") as server:
        yield server


@pytest.fixture(scope="session")
def browser():
    # Chromium's sandbox does not work as root.
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ["EBB_CHROMIUM"], args=QUIET + sandbox
        )
        yield browser
        browser.close()


@pytest.fixture
def shots():
    """The folder for screenshots."""
    return pathlib.Path(os.environ["EBB_SHOTS"])


class Watched:
    """A tab of its own, with all that it asked for and complained about."""

    def __init__(self, browser, address, **options):
        self.address = address
        options = {"viewport": {"width": 1360, "height": 1000}, **options}
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.set_default_timeout(60_000)
        self.page.goto(f"http://{address}/")
        self.page.wait_for_selector("#server[data-state=ready]")

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def asked(self, path):
        """Bodies of the POSTs to a path."""
        posts = [r for r in self.requests if r.method == "POST" and r.url.endswith(path)]
        return [request.post_data_json for request in posts]

    def close(self):
        """Closes the tab, which asked nobody else and has nothing to complain about."""
        self.context.close()
        assert not self.complaints, self.complaints
        elsewhere = [
            request.url
            for request in self.requests
            if not request.url.startswith(f"http://{self.address}/")
        ]
        assert not elsewhere, elsewhere


@pytest.fixture
def tab(browser, server):
    """A tab on an idle server."""
    server.idle(60)
    watched = Watched(browser, server.api)
    yield watched
    watched.close()


@pytest.fixture
def other_tab(browser, server):
    """Opens tabs with options of their own, such as a width or a colour scheme."""
    opened = []

    def open_tab(address=None, **options):
        opened.append(Watched(browser, address or server.api, **options))
        return opened[-1]

    yield open_tab
    for watched in opened:
        watched.close()
