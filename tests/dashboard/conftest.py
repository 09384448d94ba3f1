"""The dashboard on running servers, over each kind of database, asked by a program or looked at in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from html import unescape

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from keptwork.http.middleware import COOKIE
from tests.http.conftest import OURS, Running, postgres_http_server, running, sqlite_server, two_tenants

__all__ = ["postgres_http_server", "running", "sqlite_server"]

CHROMIUM = os.environ.get("KEPTWORK_CHROMIUM") or shutil.which("chromium")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

SignedIn = Callable[..., httpx.Client]
Opens = Callable[..., Page]


def pytest_itemcollected(item: pytest.Item) -> None:
    """What a browser shows comes in its own time."""
    if "chromium" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.acceptance)


def next_page(shown: str) -> str:
    """The address that a page of a list says the list goes on at."""
    return unescape(shown.partition('<p class="more"><a href="')[2].partition('"')[0])


@pytest.fixture
def signed_in(running: Running) -> Iterator[SignedIn]:
    """Makes clients that have signed in as a browser does, with a cookie; `key` says as whom."""
    opened: list[httpx.Client] = []

    def sign_in(key: str = OURS) -> httpx.Client:
        client = httpx.Client(base_url=running.address, timeout=30, headers={"Origin": running.address})
        opened.append(client)
        assert client.post("/ui/session", headers={"Authorization": f"Bearer {key}"}).status_code == 204
        return client

    yield sign_in
    for client in opened:
        client.close()


@pytest.fixture
def site(signed_in: SignedIn) -> httpx.Client:
    """Somebody who has signed in and may do all but administrate."""
    return signed_in()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A real browser without a screen. It is closed with the file that needed it, for as long as it is open a loop runs
    in this thread: whatever test came next in the same process could start none of its own."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine; on Debian: make browser")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def looked_at(sqlite_server: Running) -> Running:
    """A server that a browser looks at: one kind of database is enough there."""
    two_tenants(sqlite_server)
    return sqlite_server


@pytest.fixture
def opens(chromium: Browser, looked_at: Running) -> Iterator[Opens]:
    """Opens an address in a browser that has signed in. Nothing may go wrong in it: what its console says of errors, a
    policy that something breaks among them, fails the test."""
    context = chromium.new_context(base_url=looked_at.address, viewport={"width": 1280, "height": 900})
    complaints: list[str] = []

    def open_(address: str, key: str = OURS) -> Page:
        context.add_cookies([{"name": COOKIE, "value": key, "url": looked_at.address, "sameSite": "Strict"}])
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield open_
    context.close()
    assert complaints == []
