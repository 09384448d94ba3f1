"""Schedules: their rules and ticks, and the buttons that pause, resume, run and delete them."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from keptwork.core.schedule_rules import Rule
from keptwork.store import NewJob, Store
from keptwork.store.contract.queues import Schedule
from tests.dashboard.conftest import Opens, SignedIn, next_page
from tests.http.conftest import READER, THEIRS, Running
from tests.http.flow_stage import GRAPH

SCHEDULES = "/api/schedules"
AWKWARD = 'each <b>day</b> & "night"? #1 50%'


def added(client: httpx.Client, name: str, **more: object) -> None:
    answer = client.post(SCHEDULES, json={"name": name, **({"kind": "report", "every": "15m"} | more)})
    assert answer.status_code == 201, answer.text


def test_schedules_are_shown_with_their_rules_zones_and_next_three_ticks(site: httpx.Client):
    added(site, "nightly", every=None, cron="30 3 1 1 *", tz="Europe/Berlin")
    added(site, "often")
    site.post("/api/templates", json={"definition": GRAPH})
    added(site, "train", kind=None, template="graph", every="1d")
    page = site.get("/ui/schedules").text
    assert "30 3 1 1 *" in page
    assert "Europe/Berlin" in page
    assert page.count("-01-01 03:30:00+01:00") == 3
    assert "every 15m" in page
    assert "starts the flow graph" in page


def test_a_schedule_in_a_zone_that_is_not_known_here_says_so_and_the_others_are_shown(
    running: Running, site: httpx.Client
):
    added(site, "good")
    job = NewJob("report", tenant_id=running.ours)
    strange = Schedule.of(
        "strange", job, Rule("0 3 * * *", None, "Mars/Olympus"), "latest", "hand", 4_000_000_000_000_000
    )

    async def put(store: Store) -> None:
        await store.put_schedule(strange)

    running.do(put)
    page = site.get("/ui/schedules")
    assert page.status_code == 200
    assert "is no time zone" in page.text
    assert ">good<" in page.text


def test_schedules_go_on_at_another_page(site: httpx.Client):
    for n in range(51):
        added(site, f"s{n:02}")
    first = site.get("/ui/schedules").text
    assert (">s00<" in first, ">s50<" in first) == (True, False)
    rest = site.get(next_page(first)).text
    assert (">s00<" in rest, ">s50<" in rest) == (False, True)


def test_without_schedules_the_page_says_how_to_have_one(site: httpx.Client):
    assert "keptwork schedules add" in site.get("/ui/schedules").text


def test_a_reader_and_another_tenant_see_what_is_theirs_to_see(site: httpx.Client, signed_in: SignedIn):
    added(site, AWKWARD)
    page = site.get("/ui/schedules").text
    assert "each &lt;b&gt;day&lt;/b&gt; &amp; &#34;night&#34;" in page
    assert "<b>day</b>" not in page
    assert (
        'data-act="POST /api/schedules/each%20%3Cb%3Eday%3C%2Fb%3E%20%26%20%22night%22%3F%20%231%2050%25/pause"' in page
    )
    assert "data-act" not in signed_in(READER).get("/ui/schedules").text
    assert "night" not in signed_in(THEIRS).get("/ui/schedules").text


def test_in_a_browser_a_button_that_is_being_pressed_is_not_taken_away_by_what_is_new(looked_at: Running, opens: Opens):
    with looked_at.client() as client:
        added(client, "report")
        page = opens("/ui/schedules")
        page.get_by_role("button", name="Pause").hover()
        page.mouse.down()
        added(client, "another one")
        news = ""
        while "another one" not in news:
            with page.expect_response("**/ui/schedules") as answer:
                pass
            news = answer.value.text()
    expect(page.get_by_text("another one")).to_have_count(0)
    page.mouse.up()
    expect(page.get_by_role("dialog")).to_contain_text("Pause report?")
    page.get_by_role("dialog").get_by_role("button", name="Not now").click()
    expect(page.get_by_text("another one")).to_be_visible()


def test_in_a_browser_a_schedule_is_paused_resumed_run_and_deleted(looked_at: Running, opens: Opens):
    with looked_at.client() as client:
        added(client, AWKWARD)
        page = opens("/ui/schedules")
        page.evaluate("window.same = true")
        dialog = page.get_by_role("dialog")
        for label in ("Pause", "Resume", "Run now"):
            page.get_by_role("button", name=label).click()
            if label != "Resume":
                expect(dialog).to_contain_text(AWKWARD)
                dialog.get_by_role("button", name=label).click()
            expect(page.get_by_role("status")).to_contain_text(f"{label}: done.")
        (job,) = client.get("/api/jobs").json()["jobs"]
        assert job["kind"] == "report"
        page.get_by_role("button", name="Delete").click()
        dialog.get_by_role("button", name="Not now").click()
        expect(page.get_by_role("cell", name="every 15m")).to_be_visible()
        page.get_by_role("button", name="Delete").click()
        dialog.get_by_role("button", name="Delete").click()
        expect(page.get_by_text("There is no schedule.")).to_be_visible()
        added(client, "a later one")
    expect(page.get_by_text("a later one")).to_be_visible()
    assert page.evaluate("window.same") is True
