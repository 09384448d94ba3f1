"""The pages of the event log and of the lifecycles."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import expect

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, LIFECYCLES
from keptwork.core.render import rows
from keptwork.dashboard.pages import events
from keptwork.dashboard.pages.overview import ways
from keptwork.store import NewJob
from tests.conformance.stage import moved
from tests.dashboard.conftest import Opens, SignedIn, next_page
from tests.http.conftest import READER, THEIRS, Running

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def made(running: Running, number: int = 1, correlation_id: str | None = None) -> list[str]:
    """So many jobs, and with each of them an event."""
    new = [NewJob("fetch", tenant_id=running.ours, correlation_id=correlation_id)] * number
    return [public_id("job", key) for key in running.do(lambda store: store.enqueue(new))]


def cancelled(running: Running, id: str, **facts: str) -> None:
    key = running.do(lambda store: store.jobs())[0]["id"]
    assert public_id("job", key) == id
    running.do(lambda store: moved(store, JOB, key, "cancel", **facts))


def listed(text: str) -> list[str]:
    """Whose events a page shows, in its order."""
    return re.findall(r'<td><a class="id" href="/ui/jobs/(job_[^"]+)"', text)


def test_where_nothing_has_happened_that_is_said(site: httpx.Client):
    assert "Nothing has happened yet." in site.get("/ui/events").text


def test_the_newest_come_first_and_page_after_page_there_is_every_event_once(running: Running, site: httpx.Client):
    ids = made(running, events.AT_ONCE + 10)
    first = site.get("/ui/events").text
    second = site.get(next_page(first)).text
    assert len(listed(first)) == events.AT_ONCE
    assert listed(first) + listed(second) == sorted(ids, reverse=True)
    assert "Older" not in second
    assert listed(site.get(next_page(second)).text) == listed(first)  # back to the newest
    assert 'data-live=""' in second
    assert 'data-live="/api/events/stream?"' in first


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"entity": "job"}, ["second", "second", "first"]),
        ({"entity": "worker"}, []),
        ({"type": "job_cancelled"}, ["second"]),
        ({"id": "second"}, ["second", "second"]),
        ({"correlation_id": "order-1"}, ["first"]),
        ({"since": "10m"}, ["second", "second", "first"]),
        ({"since": "2000-01-01T00:00:00Z", "type": "job_enqueued"}, ["second", "first"]),
        ({"text": "no longer"}, ["second"]),
        ({"type": " ", "id": ""}, ["second", "second", "first"]),
    ],
)
def test_filters_narrow_the_log_and_stay_in_the_address(
    running: Running, site: httpx.Client, query: dict[str, str], found: list[str]
):
    ids = dict(zip(("first", "second"), made(running, correlation_id="order-1") + made(running), strict=True))
    cancelled(running, ids["second"], reason="no longer wanted", actor="cli:ann")
    given = {name: ids.get(value, value) for name, value in query.items()}
    text = site.get("/ui/events", params=given).text
    assert listed(text) == [ids[name] for name in found]
    assert found or "No event matches." in text
    for name, value in given.items():
        assert not value.strip() or name == "entity" or f'name="{name}" value="{value}"' in text


def test_the_stream_is_narrowed_as_the_page_is(running: Running, site: httpx.Client):
    (id,) = made(running)
    text = site.get("/ui/events", params={"id": id, "entity": "job", "since": "1h"}).text
    assert f'data-live="/api/events/stream?entity=job&amp;id={id}"' in text


@pytest.mark.parametrize(
    ("query", "status"),
    [({"id": "job_1"}, 404), ({"entity": "cat"}, 422), ({"since": "yesterday"}, 422), ({"after": "x"}, 400)],
)
def test_what_cannot_be_asked_is_a_page_that_says_so(site: httpx.Client, query: dict[str, str], status: int):
    page = site.get("/ui/events", params=query)
    assert page.status_code == status
    assert "<h1>" in page.text


def test_the_events_of_another_tenant_are_not_shown(running: Running, site: httpx.Client, signed_in: SignedIn):
    (id,) = made(running, correlation_id="order-1")
    foreign = signed_in(THEIRS)
    for query in ({}, {"id": id}, {"correlation_id": "order-1"}, {"text": "fetch"}):
        assert listed(foreign.get("/ui/events", params=query).text) == []
    assert listed(site.get("/ui/events", params={"id": id}).text) == [id]


def test_what_people_and_tools_said_is_shown_as_text_and_cut_where_it_is_long(running: Running, site: httpx.Client):
    (id,) = made(running, correlation_id=HOSTILE)
    detail = f'{{"said": "{"y" * events.LONGEST_DETAIL}"}}'
    cancelled(running, id, reason=HOSTILE + "x" * 900, actor=HOSTILE, detail=detail)
    text = site.get("/ui/events").text
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text
    assert "x" * 400 not in text
    assert "y" * (events.LONGEST_DETAIL + 1) not in text
    assert "This is the beginning" in text


def test_a_reader_sees_all_of_it_and_no_buttons(running: Running, signed_in: SignedIn):
    made(running)
    text = signed_in(READER).get("/ui/events").text
    assert listed(text)
    assert "data-act" not in text


# --- lifecycles


@pytest.mark.parametrize("lifecycle", LIFECYCLES.values(), ids=LIFECYCLES)
def test_every_move_of_every_lifecycle_is_shown(lifecycle):
    found = {
        (source, target.name, trigger)
        for source, targets in ways(lifecycle)
        for target, triggers in zip(lifecycle.states, targets, strict=True)
        for trigger in triggers
    }
    assert found == {(row.source or "", row.move.target.name, row.move.trigger) for row in rows(lifecycle)}


def test_the_lifecycles_are_found_from_the_events(site: httpx.Client):
    assert 'href="/ui/lifecycles"' in site.get("/ui/events").text
    text = site.get("/ui/lifecycles").text
    for name, lifecycle in LIFECYCLES.items():
        assert f'href="/ui/lifecycles/{name}"' in text
        page = site.get(f"/ui/lifecycles/{name}").text
        assert all(move.event in page for move in lifecycle.moves)
    assert site.get("/ui/lifecycles/cat").status_code == 404


# --- in a browser


def test_new_events_come_in_on_top_unless_somebody_reads_further_down(opens: Opens, looked_at: Running):
    made(looked_at, events.AT_ONCE)
    page = opens("/ui/events")
    top = page.locator("table.log tbody tr").first
    expect(page.get_by_text("Following: the newest come in on top.")).to_be_visible()
    (id,) = made(looked_at)
    expect(top).to_contain_text(id[-8:])

    page.mouse.wheel(0, 600)
    expect(page.get_by_text("It stands still while you read")).to_be_attached()
    expect(page.locator("body.still")).to_be_attached()
    (later,) = made(looked_at)
    page.wait_for_timeout(1_500)  # nothing is to happen, which nothing tells
    expect(top).to_contain_text(id[-8:])
    page.evaluate("scrollTo(0, 0)")
    expect(top).to_contain_text(later[-8:])


def test_a_filter_is_typed_and_what_is_open_stays_open(opens: Opens, looked_at: Running):
    (id,) = made(looked_at)
    cancelled(looked_at, id, reason="no", detail='{"why": "because"}')
    page = opens("/ui/events")
    page.get_by_label("Type").fill("job_cancelled")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("type=job_cancelled"))
    expect(page.locator("table.log tbody tr")).to_have_count(1)
    page.get_by_text("What it says").click()
    expect(page.get_by_text('"because"')).to_be_visible()
    (other,) = made(looked_at)
    cancelled(looked_at, other, reason="no")
    expect(page.locator("table.log tbody tr")).to_have_count(2)
    expect(page.get_by_text('"because"')).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(page.locator("table.log tbody tr")).to_have_count(4)
