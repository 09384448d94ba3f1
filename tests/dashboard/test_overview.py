"""The first page: what needs somebody, what goes on, and how fast."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from keptwork.core.lifecycles import JOB
from keptwork.dashboard import charts
from keptwork.dashboard.pages import overview as page
from keptwork.diagnostics.overview import MINUTES, Minute
from keptwork.jobs import limits
from keptwork.observability import stats
from keptwork.store import NewJob, Store
from tests.conformance.stage import claim, moved, worker
from tests.dashboard.conftest import Opens, SignedIn
from tests.http.conftest import READER, THEIRS, Running
from tests.http.flow_stage import failed_workstream, open_breaker, workstream

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def section(text: str, id: str) -> str:
    """What stands under the heading of that id."""
    found = re.search(rf'<section aria-labelledby="{id}">(.*?)</section>', text, re.S)
    return found[1] if found else ""


def figures(text: str) -> dict[str, str]:
    """What needs somebody, by the words for it: the number."""
    return {words.strip(): number for number, words in re.findall(r"<b>(\S+)</b> ([^<]*)<", section(text, "needs"))}


async def busy(store: Store, tenant_id: int) -> None:
    """Of everything something: jobs that run, wait, are held back, and ended well and badly."""
    mine: dict[str, Any] = {"tenant_id": tenant_id, "queue": f"q{tenant_id}"}
    owner = await worker(store, tenant_id=tenant_id)
    await store.enqueue([NewJob("fetch", **mine)] * 4)
    _, well, badly, dead = await claim(store, owner, 4, mine["queue"], start=True)
    await moved(store, JOB, well.id, "succeed", by="holder")
    await moved(store, JOB, badly.id, "fail", by="holder", reason="no", values={"error": "no"})
    await moved(store, JOB, dead.id, "dead_letter", by="holder", reason="timeout", reason_code="timeout")
    await store.enqueue([NewJob("fetch", held_by="breaker:tool:aider", **mine), NewJob("fetch", **mine)])


def test_a_new_tenant_is_told_how_to_begin(site: httpx.Client):
    assert "Nothing has happened here yet." in site.get("/ui/").text


def test_what_needs_somebody_is_told_with_the_way_there(running: Running, site: httpx.Client, signed_in: SignedIn):
    with running.client() as client:
        failed_workstream(client)
        workstream(client)
    open_breaker(running)
    running.do(lambda store: busy(store, running.ours))
    running.do(lambda store: limits.pause(store, running.ours, "emails"))
    text = site.get("/ui/").text
    assert figures(text) == {
        "open approval": "1",
        "failed flow to mend": "1",
        "dead letter": "1",
        "open breaker": "1",
        "job held back": "1",
        "paused queue": "1",
    }
    for address, _ in page.WHERE.values():
        assert address == "/ui/workers" or f'href="{address.replace("&", "&amp;")}"' in section(text, "needs")
    assert "Nothing has happened here yet." in signed_in(THEIRS).get("/ui/").text


def test_if_nothing_needs_anybody_that_is_said(running: Running, site: httpx.Client):
    running.do(lambda store: store.enqueue([NewJob("fetch", tenant_id=running.ours)]))
    assert "All is well: nothing needs you." in site.get("/ui/").text


def test_what_goes_on_is_shown_with_how_far_and_how_fast(running: Running, site: httpx.Client):
    with running.client() as client:
        flow = workstream(client)["id"]
        assert client.post(f"/api/workstreams/{flow}/hold", json={}).status_code == 200
    running.do(lambda store: busy(store, running.ours))
    text = site.get("/ui/").text
    assert re.findall(r"<b>(\S+)</b> ([\w ]+)<", section(text, "going-on")) == [
        ("1", "running"),
        ("2", "queued"),
        ("3", "ended in the last minute"),
        ("2", "failed of them"),
        ("1", "worker"),
    ]
    assert "3 jobs ended in the last hour, 2 of them failed; at most 3 in a minute" in text
    assert flow in section(text, "flows")
    assert "0 of 2" in section(text, "flows")
    assert "on hold" in section(text, "flows")
    assert section(text, "running").count("<tr>") == 2
    (row,) = re.findall(r"<tr>\s*<td class=\"name\">.*?</tr>", section(text, "kinds"), re.S)
    assert re.findall(r"<td class=\"number\">([^<]+)</td>", row)[:3] == ["3", "33.3 %", "0"]


def test_only_who_supervises_can_pause_queues(running: Running, signed_in: SignedIn):
    running.do(lambda store: busy(store, running.ours))
    assert "data-act" in signed_in().get("/ui/").text
    assert "data-act" not in signed_in(READER).get("/ui/").text


def test_what_users_called_things_is_shown_as_text(running: Running, site: httpx.Client):
    mine: dict[str, Any] = {"tenant_id": running.ours, "queue": f"{HOSTILE}{running.ours}"}

    async def made(store: Store) -> None:
        await store.enqueue([NewJob(HOSTILE, **mine)] * 2)
        await claim(store, await worker(store, tenant_id=running.ours), 1, mine["queue"], start=True)

    running.do(made)
    text = site.get("/ui/").text
    assert "<script>alert" not in text
    assert "<img" not in text.replace('<img src="/ui/static/mark.svg', "")
    assert text.count("&lt;script&gt;alert(2)&lt;/script&gt;") >= 3


def test_what_was_not_counted_yet_is_said_to_be_coming(running: Running, site: httpx.Client, monkeypatch):
    running.do(lambda store: stats.roll_up(store))
    monkeypatch.setattr(page, "COUNTED_AT_ONCE", 2)
    running.do(lambda store: store.enqueue([NewJob("fetch", tenant_id=running.ours)] * 5))
    first = site.get("/ui/").text
    assert "Not everything is counted yet" in first
    deadline = time.monotonic() + 10
    while "Not everything is counted yet" in (text := site.get("/ui/").text):
        assert time.monotonic() < deadline
    assert "fetch" in section(text, "kinds")


@pytest.mark.parametrize("known", [0, 1, MINUTES])
def test_a_chart_has_a_bar_for_every_minute_in_which_something_ended(known: int):
    minutes = [Minute(number * 60_000_000, 5, number % 3, number % 2) for number in range(known)]
    drawn = str(charts.minutes(minutes))
    assert drawn.count("<g>") == sum(1 for minute in minutes if minute.ended)
    assert 'role="img"' in drawn
    highs = [int(high) for high in re.findall(r'height="(\d+)"', drawn.partition("<line")[2])]
    assert all(0 < high <= charts.HEIGHT for high in highs)


# --- in a browser


def opened(opens: Opens) -> Page:
    seen = opens("/ui/")
    expect(seen.get_by_role("heading", name="Overview")).to_be_visible()
    return seen


def test_a_queue_is_paused_after_a_question_and_the_page_says_so_by_itself(opens: Opens, looked_at: Running):
    running = looked_at
    running.do(lambda store: store.enqueue([NewJob("fetch", tenant_id=running.ours, queue="mail & more?")]))
    seen = opened(opens)
    expect(seen.get_by_text("All is well")).to_be_visible()
    seen.get_by_role("button", name="Pause").click()
    expect(seen.get_by_text("Pause the queue mail & more?")).to_be_visible()
    seen.get_by_role("button", name="Not now").click()
    seen.get_by_role("button", name="Pause").click()
    seen.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(seen.get_by_role("status").get_by_text("Pause: done.")).to_be_visible()
    expect(seen.get_by_role("link", name="1 paused queue")).to_be_visible()
    (queue,) = running.do(lambda store: store.queues(running.ours))
    assert queue.paused_at is not None
    seen.get_by_role("button", name="Resume").click()
    expect(seen.get_by_text("All is well")).to_be_visible()


def test_what_is_new_comes_in_without_a_reload(opens: Opens, looked_at: Running):
    seen = opened(opens)
    seen.evaluate("window.still = true")
    looked_at.do(lambda store: store.enqueue([NewJob("newcomer", tenant_id=looked_at.ours)]))
    expect(seen.get_by_role("link", name="newcomer")).to_be_visible(timeout=8_000)
    assert seen.evaluate("window.still") is True
