"""Breakers: how they stand, what they hold back, and closing one by hand."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from keptwork.jobs import breakers
from keptwork.jobs.breaker import Breaker
from keptwork.store import NewJob, Store
from tests.dashboard.conftest import Opens, SignedIn, next_page
from tests.http.conftest import READER, THEIRS, Running
from tests.http.flow_stage import open_breaker

ODD = 'model:x/y "<b>?&#'


def held(running: Running, name: str, jobs: int) -> None:
    """So many jobs of ours that a breaker holds back."""

    async def enqueue(store: Store) -> None:
        await store.enqueue([NewJob("kind", "{}", "q", running.ours, held_by=f"breaker:{name}")] * jobs)

    running.do(enqueue)


def closed(running: Running, name: str) -> None:
    """A breaker that has never tripped."""

    async def make(store: Store) -> None:
        await store.atomically(lambda tx: breakers.ensure(tx, running.ours, Breaker(name)))

    running.do(make)


def test_breakers_are_shown_with_what_they_hold_back_and_what_comes_next(running: Running, site: httpx.Client):
    assert "There is no breaker" in site.get("/ui/breakers").text
    open_breaker(running)
    held(running, "tool:aider", 3)
    closed(running, ODD)
    page = site.get("/ui/breakers").text
    assert page.index("tool:aider") > page.index("model:x/y")
    row = page.partition(">tool:aider<")[2].partition("</tr>")[0]
    assert ">open<" in row
    assert "5 of 5" in row
    assert '<td class="number">3</td>' in row
    assert "opens a probe in" in row
    assert "exit code 1" in row
    assert 'data-act="POST /api/breakers/tool%3Aaider/reset"' in row
    assert "data-act" not in page.partition("model:x/y")[2].partition("</tr>")[0]


def test_a_breaker_has_a_page_whatever_its_name(running: Running, site: httpx.Client):
    open_breaker(running, ODD)
    listed = site.get("/ui/breakers").text
    address = listed.partition('<td class="long task"><a href="')[2].partition('"')[0]
    page = site.get(address)
    assert page.status_code == 200
    assert "model:x/y &#34;&lt;b&gt;?&amp;#" in page.text
    assert "<b>?" not in page.text
    assert page.text.index(">trip<") < page.text.index(">create<")
    reset = page.text.partition('data-act="POST ')[2].partition('"')[0]
    assert site.post(reset, json={"reason": "it is back"}).status_code == 200
    after = site.get(address).text
    assert "it is back" in after
    assert "data-act" not in after


def test_a_breaker_is_reset_by_those_who_supervise_alone(running: Running, site: httpx.Client, signed_in: SignedIn):
    open_breaker(running)
    ours = running.keys.known["kw_ours"]
    for address in ("/ui/breakers", "/ui/breakers/tool:aider"):
        assert "data-act" in site.get(address).text
        assert "data-act" not in signed_in(READER).get(address).text
        running.keys.known["kw_ours"] = ours._replace(scopes=ours.scopes - {"supervise"})
        assert "data-act" not in site.get(address).text
        running.keys.known["kw_ours"] = ours
    theirs = signed_in(THEIRS)
    assert "aider" not in theirs.get("/ui/breakers").text
    for name in ("tool:aider", "none"):
        assert theirs.get(f"/ui/breakers/{name}").status_code == 404


def test_breakers_go_on_at_another_page(running: Running, site: httpx.Client):
    for n in range(51):
        closed(running, f"b{n:02}")
    first = site.get("/ui/breakers").text
    assert (">b00<" in first, ">b50<" in first) == (True, False)
    rest = site.get(next_page(first)).text
    assert (">b00<" in rest, ">b50<" in rest) == (False, True)


def test_in_a_browser_a_breaker_is_reset_with_and_without_a_reason(looked_at: Running, opens: Opens):
    for name in ("tool:aider", "payments"):
        open_breaker(looked_at, name)
    page = opens("/ui/breakers")
    row = page.get_by_role("row", name="payments")
    row.get_by_role("button", name="Reset").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(row.locator(".chip")).to_have_text("closed")
    page.get_by_role("link", name="tool:aider").click()
    page.get_by_role("button", name="Reset").click()
    page.get_by_label("Why?").fill("the tool is mended")
    page.get_by_role("dialog").get_by_role("button", name="Reset").click()
    expect(page.locator(".events")).to_contain_text("the tool is mended")
    expect(page.locator(".head .chip")).to_have_text("closed")
    open_breaker(looked_at, "tool:aider")
    expect(page.locator(".head .chip")).to_have_text("open")
    page.goto("/ui/breakers/payments")
    expect(page.locator(".events")).to_contain_text("reset in the dashboard")
