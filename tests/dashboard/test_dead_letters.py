"""The page of dead letters, asked by a program and looked at in a browser."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from keptwork.store import NewJob
from tests.dashboard.conftest import Opens, SignedIn
from tests.dashboard.stage import HOSTILE, buttons, is_harmless, links
from tests.dashboard.test_jobs import jobs_in
from tests.http.conftest import READER, THEIRS, Running
from tests.http.test_jobs import enqueued
from tests.http.test_other_routes import dead
from tests.http.test_workers import begun, claimed, made, say


def given_up(site: httpx.Client, **more: object) -> str:
    """A job whose payload was no good, as its worker said."""
    id, worker = enqueued(site, **more)["id"], made(site, queues=[more.get("queue", "default")])
    (job,) = claimed(site, worker)
    say(site, "fail", worker, job, error={"message": f"no {HOSTILE}", "kind": "validation", "stage": "input"})
    return str(id)


def test_dead_letters_are_counted_by_kind_and_reason_and_listed_with_their_errors(running: Running, site: httpx.Client):
    assert "No dead letters." in site.get("/ui/dead-letters").text
    violating = dead(running, 2)
    invalid = given_up(site, queue="mail", kind="send")
    page = site.get("/ui/dead-letters").text
    assert jobs_in(page) == [invalid, *violating[::-1]]
    assert is_harmless(page)
    assert "validation failed" in page
    assert "1 of 4" in page
    groups = links(page, "/ui/dead-letters?kind=kind&reason_code=")
    assert groups == ["/ui/dead-letters?kind=kind&reason_code=policy_violation"]
    assert jobs_in(site.get(groups[0]).text) == violating[::-1]
    ask = lambda **query: jobs_in(site.get("/ui/dead-letters", params=query).text)  # noqa: E731
    assert ask(queue="mail", reason_code="", text="") == [invalid]
    assert ask(text="BROKEN") == violating[::-1]
    assert ask(reason_code="validation_failed", kind="kind") == []
    assert site.get("/ui/dead-letters?reason_code=whim").status_code == 422


def test_one_is_run_again_and_the_page_says_as_what(running: Running, site: httpx.Client, signed_in: SignedIn):
    first, second = dead(running, 2)
    assert buttons(site.get("/ui/dead-letters").text) == ["Run 2 again", "Run again", "Run again"]
    assert buttons(signed_in(READER).get("/ui/dead-letters").text) == []
    assert jobs_in(signed_in(THEIRS).get("/ui/dead-letters").text) == []
    again = site.post(f"/api/dead-letters/{second}/redrive").json()["new"]
    page = site.get("/ui/dead-letters").text
    assert jobs_in(page) == [second, again, first]
    assert buttons(page) == ["Run 1 again", "Run again"]


def test_many_are_counted_first_and_only_those_that_the_list_is_narrowed_to(running: Running, site: httpx.Client):
    dead(running, 2)
    given_up(site, kind="send")
    page = site.get("/ui/dead-letters?kind=send").text
    assert buttons(page)[0] == "Run 1 again"
    assert 'data-body="{&#34;kind&#34;: &#34;send&#34;}"' in page
    assert "All that this list is narrowed to" in page
    searched = site.get("/ui/dead-letters?text=broken").text
    assert buttons(searched) == ["Run again"] * 2  # the API runs none again by a text


def test_a_list_of_dead_letters_has_pages(running: Running, site: httpx.Client):
    ids = dead(running, 52)
    first = site.get("/ui/dead-letters?reason_code=policy_violation").text
    (older,) = links(first, "/ui/dead-letters?reason_code=policy_violation&after=")
    assert jobs_in(first) + jobs_in(site.get(older).text) == ids[::-1]


def test_a_browser_runs_them_all_again_after_telling_how_many(opens: Opens, looked_at: Running):
    dead(looked_at, 3)
    looked_at.do(lambda store: store.enqueue([NewJob("kind", "{}", "left-alone", looked_at.ours)]))
    page = opens("/ui/dead-letters")
    page.get_by_role("button", name="Run 3 again").click()
    expect(page.get_by_role("dialog")).to_contain_text("Run 3 dead letters again, as new jobs?")
    page.get_by_role("dialog").get_by_role("button", name="Run 3 again").click()
    expect(page.get_by_role("button", name="Run", exact=False)).to_have_count(0)
    expect(page.locator("#letters")).to_contain_text("as job_…")
    with looked_at.client() as client:
        found = client.get("/api/jobs", params={"kind": "kind", "state": "queued"}).json()["jobs"]
    assert sum(one["redriven_from"] is not None for one in found) == 3


def test_what_carried_out_a_step_is_not_run_again_by_itself(running: Running, site: httpx.Client):
    begun(running)
    worker = made(site, kinds=["keptwork.call"])
    (step,) = claimed(site, worker)
    say(site, "fail", worker, step, error={"kind": "validation"})
    page = site.get("/ui/dead-letters").text
    assert jobs_in(page) == [step["id"]]
    assert buttons(page) == []
    assert "see the job" in page
