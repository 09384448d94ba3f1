"""The pages about jobs, asked by a program and looked at in a browser."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect

from keptwork import Keptwork
from keptwork.core import ids
from keptwork.dashboard.pages import jobs
from keptwork.store import NewJob
from tests.dashboard.conftest import Opens, SignedIn
from tests.dashboard.stage import HOSTILE, buttons, is_harmless, links
from tests.http.conftest import READER, THEIRS, Running
from tests.http.flow_stage import beside, worker_beside
from tests.http.test_jobs import enqueued
from tests.http.test_workers import begun, claimed, made, one_claimed, say, until

BROKEN = {"message": "no answer", "type": "TimeoutError"}


def test_the_newest_jobs_come_first_and_filters_narrow_them_and_stay_in_the_address(site: httpx.Client):
    first = enqueued(site, queue="mail", kind="send", correlation_id="order-17")["id"]
    second = enqueued(site, queue="mail")["id"]
    third = enqueued(site)["id"]
    site.post(f"/api/jobs/{third}/cancel")
    ask = lambda **query: jobs_in(site.get("/ui/jobs", params=query).text)  # noqa: E731
    assert ask() == [third, second, first]
    assert ask(queue="mail", state="", text="") == [second, first]
    assert ask(queue="mail", kind="send") == [first]
    assert ask(correlation_id="order-17") == [first]
    assert ask(state="cancelled") == [third]
    assert ask(text="SEND") == [first]
    page = site.get("/ui/jobs", params={"queue": "mail", "text": "e"}).text
    assert "/ui/jobs?queue=mail&text=e&state=failed" in links(page, "/ui/jobs?")
    assert "/ui/jobs?queue=mail&text=e&kind=send" in links(page, "/ui/jobs?")
    assert "/ui/jobs?queue=mail" in links(page, "/ui/jobs?")
    assert '<input type="hidden" name="queue" value="mail">' in page
    assert "No such jobs." in site.get("/ui/jobs?kind=other").text


def test_a_list_has_pages_and_none_comes_twice(running: Running, site: httpx.Client):
    running.do(lambda store: store.enqueue([NewJob("many", "{}", "default", running.ours)] * 55))
    first = site.get("/ui/jobs?kind=many").text
    (older,) = links(first, "/ui/jobs?kind=many&after=")
    second = site.get(older).text
    assert (len(jobs_in(first)), len(jobs_in(second))) == (50, 5)
    assert len({*jobs_in(first), *jobs_in(second)}) == 55
    assert "Newest</a>" in second
    assert "Older" not in second


def test_a_server_without_jobs_says_how_to_make_one(site: httpx.Client):
    assert "keptwork jobs enqueue" in site.get("/ui/jobs").text


@pytest.mark.parametrize("query", ["state=lost", "queue=%00", "after=nonsense", f"text={'x' * 201}"])
def test_what_cannot_be_asked_for_is_a_page_that_says_so(site: httpx.Client, query: str):
    page = site.get(f"/ui/jobs?{query}")
    assert page.status_code in (400, 422)
    assert "<h1>" in page.text


def test_another_tenants_job_is_as_unknown_as_one_that_never_was(site: httpx.Client, signed_in: SignedIn):
    id = str(enqueued(site)["id"])
    never = ids.public("job", 17)
    pages = [signed_in(THEIRS).get(f"/ui/jobs/{one}") for one in (id, never)]
    assert [page.status_code for page in pages] == [404, 404]
    assert pages[0].text.replace(id, "") == pages[1].text.replace(never, "")
    assert site.get("/ui/jobs/nonsense").status_code == 404
    assert jobs_in(signed_in(THEIRS).get("/ui/jobs").text) == []


def test_whatever_a_job_says_of_itself_is_shown_as_text(site: httpx.Client):
    worker = made(site, name=HOSTILE)
    id = enqueued(site, kind=HOSTILE[:100], key=HOSTILE, correlation_id=HOSTILE, payload={HOSTILE: HOSTILE})["id"]
    (job,) = claimed(site, worker)
    say(site, "progress", worker, job, fraction=0.5, text=HOSTILE)
    say(site, "checkpoint", worker, job, name=HOSTILE)
    keep(site, worker, job, HOSTILE.replace("/", ""), b"x")
    assert is_harmless(site.get(f"/ui/jobs/{id}").text)
    say(site, "fail", worker, job, error={"message": HOSTILE, "type": "E", "kind": "permanent"})
    assert is_harmless(site.get(f"/ui/jobs/{id}").text)
    assert is_harmless(site.get("/ui/jobs", params={"text": HOSTILE[:40]}).text)


def test_buttons_are_those_that_the_state_and_the_key_allow(site: httpx.Client, signed_in: SignedIn):
    reader = signed_in(READER)
    waiting = str(enqueued(site, queue="elsewhere")["id"])
    worker, run = one_claimed(site)
    _, done = one_claimed(site, worker)
    say(site, "succeed", worker, done)
    _, lost = one_claimed(site, worker)
    say(site, "fail", worker, lost, error={"kind": "permanent"})
    shown = [site.get(f"/ui/jobs/{id}").text for id in (waiting, run["id"], done["id"], lost["id"])]
    assert [buttons(page) for page in shown] == [["Cancel"], ["Cancel", "Cancel at once"], [], ["Run again"]]
    assert buttons(reader.get(f"/ui/jobs/{run['id']}").text) == []
    assert buttons(reader.get(f"/ui/jobs/{lost['id']}").text) == []
    site.post(f"/api/jobs/{run['id']}/cancel")
    assert buttons(site.get(f"/ui/jobs/{run['id']}").text) == ["Cancel at once"]
    assert "&#34;again&#34;" not in shown[3]
    again = site.post(f"/api/jobs/{lost['id']}/retry").json()["new"]
    page = site.get(f"/ui/jobs/{lost['id']}").text
    assert "again&#34;: true" in page
    assert f"/ui/jobs/{again}" in links(page, "/ui/jobs/")
    assert f"/ui/jobs/{lost['id']}" in links(site.get(f"/ui/jobs/{again}").text, "/ui/jobs/")


def test_a_job_says_why_it_waits_and_what_helps_until_it_has_ended(site: httpx.Client):
    id = enqueued(site, queue="nobody's")["id"]
    page = site.get(f"/ui/jobs/{id}").text
    assert "no worker serves its queue" in page
    assert "keptwork work MODULE:APP --queues" in page
    site.post(f"/api/jobs/{id}/cancel", json={"reason": "no longer wanted"})
    page = site.get(f"/ui/jobs/{id}").text
    assert "Why it is" not in page
    assert "no longer wanted" in page


def test_a_page_shows_what_a_job_was_given_and_has_left(site: httpx.Client):
    worker, job = one_claimed(site)
    say(site, "progress", worker, job, fraction=0.25, text="page 1")
    say(site, "checkpoint", worker, job, name="download", result=[1, 2])
    keep(site, worker, job, "a report?.html", b"<script>alert(1)</script>", media_type="text/html")
    page = site.get(f"/ui/jobs/{job['id']}").text
    assert 'value="0.25"' in page
    assert "25 % page 1" in page
    assert "download" in page
    assert f"/ui/workers/{worker}" in links(page, "/ui/workers/")
    (kept,) = links(page, "/api/")
    answer = site.get(kept)
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    say(site, "succeed", worker, job, result={"size": 4})
    page = site.get(f"/ui/jobs/{job['id']}").text
    assert "&#34;size&#34;: 4" in page
    assert "25 % page 1" not in page
    assert '<rect class="good"' in page


def test_attempts_are_drawn_one_below_the_other(site: httpx.Client):
    worker, job = one_claimed(site)
    say(site, "fail", worker, job, error={**BROKEN, "retry_in": 0})
    (again,) = claimed(site, worker, wait=10)
    say(site, "succeed", worker, again)
    page = site.get(f"/ui/jobs/{job['id']}").text
    assert page.index("1 · retry: TimeoutError: no answer") < page.index("2 · succeeded")
    assert "Its last error, before it succeeded" in page
    assert 'rx="2"><title>running for ' in page


def test_of_what_there_is_too_much_the_newest_is_shown_and_the_rest_counted(
    site: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    worker, job = one_claimed(site)
    say(site, "succeed", worker, job)
    monkeypatch.setattr(jobs, "MOST_SHOWN", 3)
    page = site.get(f"/ui/jobs/{job['id']}").text
    assert "1 more; the API has them." in page
    assert '<code title="job_succeeded">' in page
    assert '<code title="job_enqueued">' not in page


def test_what_a_job_works_for_is_linked(running: Running, site: httpx.Client):
    flow, worker = begun(running), made(site, kinds=["keptwork.call"])
    (step,) = claimed(site, worker)
    page = site.get(f"/ui/jobs/{step['id']}").text
    assert f"/ui/flows/{flow}" in links(page, "/ui/flows/")
    assert "step first of" in page
    say(site, "fail", worker, step, error={"kind": "permanent"})
    ended = site.get(f"/ui/jobs/{step['id']}").text
    assert buttons(ended) == []
    assert "that is tried again on the page of its flow" in ended
    crew = site.post("/api/crews", json={"kind": "fetch", "task_description": "t"}).json()["id"]
    agent = site.post("/api/agent-jobs", json={"description": "Fix the typo"}).json()
    newest = [one["id"] for one in site.get("/api/jobs?state=queued").json()["jobs"]]
    pages = [site.get(f"/ui/jobs/{id}").text for id in newest]
    assert any(f"/ui/crews/{crew}" in links(page, "/ui/crews/") for page in pages)
    assert f"/ui/agents/{agent['id']}" in links(site.get(f"/ui/jobs/{agent['job_id']}").text, "/ui/agents/")


def test_a_job_and_those_it_spawned_lead_to_each_other(running: Running, site: httpx.Client):
    def declare(app: Keptwork) -> None:
        @app.job(name="child", queue=beside(running))
        async def child(ctx: Any) -> int:
            return 1

        @app.job(name="parent", queue=beside(running))
        async def parent(ctx: Any) -> Any:
            return await ctx.join(await ctx.spawn(child))

    with worker_beside(running, declare):
        id = enqueued(site, kind="parent", payload={}, queue=beside(running))["id"]
        until(lambda: '<span class="chip good"' in site.get(f"/ui/jobs/{id}").text)
    (child,) = [one for one in jobs_in(site.get(f"/ui/jobs/{id}").text) if one != id]
    assert f"/ui/jobs/{id}" in links(site.get(f"/ui/jobs/{child}").text, "/ui/jobs/")


def test_a_browser_cancels_a_job_after_asking_and_shows_what_came_of_it(opens: Opens, looked_at: Running):
    with looked_at.client() as client:
        id = enqueued(client, queue="elsewhere")["id"]
    page = opens(f"/ui/jobs/{id}")
    page.evaluate("window.sameDocument = true")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_contain_text("Cancel this job?")
    page.get_by_role("button", name="Not now").click()
    expect(page.locator(".head .chip")).to_have_text("queued")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("<b>not wanted</b>")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".head .chip")).to_have_text("cancelled")
    expect(page.locator("#events")).to_contain_text("<b>not wanted</b>")
    expect(page.get_by_role("button", name="Run again")).to_be_visible()
    assert page.evaluate("window.sameDocument") is True


def test_a_browser_sees_a_job_move_by_itself(opens: Opens, looked_at: Running):
    with looked_at.client() as client:
        worker, job = one_claimed(client)
        page = opens(f"/ui/jobs/{job['id']}")
        page.evaluate("window.sameDocument = true")
        expect(page.locator(".head .chip")).to_have_text("running")
        say(client, "progress", worker, job, fraction=0.25, text="begun")
        expect(page.get_by_text("25 % begun")).to_be_visible()
        say(client, "progress", worker, job, fraction=0.75, text="nearly there")
        expect(page.get_by_text("75 % nearly there")).to_be_visible()
        say(client, "succeed", worker, job)
        expect(page.locator(".head .chip")).to_have_text("succeeded")
        assert page.evaluate("window.sameDocument") is True


def test_a_browser_keeps_the_focus_where_it_was_while_a_list_moves(opens: Opens, looked_at: Running):
    with looked_at.client() as client:
        first = enqueued(client, queue="same")
        page = opens("/ui/jobs")
        page.locator(f'a[href="/ui/jobs/{first["id"]}"]').focus()
        third = enqueued(client, queue="same")
        expect(page.locator(f'a[href="/ui/jobs/{third["id"]}"]')).to_be_visible()
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"/ui/jobs/{first['id']}"


def jobs_in(page: str) -> list[str]:
    """The ids of the jobs that a page links to, each once."""
    return [one.rpartition("/")[2] for one in links(page, "/ui/jobs/job_")]


def keep(site: httpx.Client, worker: str, job: Any, name: str, content: bytes, **more: str) -> None:
    body = {"worker": worker, "epoch": job["epoch"], "content": base64.b64encode(content).decode(), **more}
    answer = site.put(f"/api/jobs/{job['id']}/artifacts/{quote(name, safe='')}", json=body)
    assert answer.status_code == 200, answer.text
