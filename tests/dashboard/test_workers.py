"""The pages about workers, asked by a program and looked at in a browser."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from keptwork.core import ids
from keptwork.core.lifecycles import WORKER
from keptwork.workers import commands as workers
from tests.conformance.stage import worker as stage_worker
from tests.dashboard.conftest import Opens, SignedIn
from tests.dashboard.stage import HOSTILE, buttons, is_harmless, links
from tests.dashboard.test_jobs import jobs_in
from tests.http.conftest import READER, THEIRS, Running
from tests.http.test_workers import made, one_claimed


def workers_in(page: str) -> list[str]:
    """The ids of the workers that a page links to, each once."""
    return [one.rpartition("/")[2] for one in links(page, "/ui/workers/w_")]


def test_workers_that_have_not_ended_are_listed_and_others_when_asked_for(site: httpx.Client):
    assert "keptwork work MODULE:APP" in site.get("/ui/workers").text
    first, second = made(site, name="gpu-1", queues=["render", "still"], version="7", concurrency=4), made(site)
    site.post(f"/api/workers/{second}/end", json={"reason": "drained"})
    page = site.get("/ui/workers").text
    assert workers_in(page) == [first]
    for told in ("gpu-1", "render, still", "0 of 4", "<td>7</td>"):
        assert told in page
    ask = lambda **query: workers_in(site.get("/ui/workers", params=query).text)  # noqa: E731
    assert ask(state="all") == [second, first]
    assert ask(state="TERMINATED") == [second]
    assert ask(host="elsewhere") == []
    assert site.get("/ui/workers?state=asleep").status_code == 422


def test_a_list_of_workers_has_pages(running: Running, site: httpx.Client):
    for _ in range(51):
        running.do(lambda store: stage_worker(store, tenant_id=running.ours))
    first = site.get("/ui/workers").text
    (older,) = links(first, "/ui/workers?after=")
    assert (len(workers_in(first)), len(workers_in(site.get(older).text))) == (50, 1)


def test_another_tenants_worker_is_as_unknown_as_one_that_never_was(site: httpx.Client, signed_in: SignedIn):
    id, never = made(site), ids.public(WORKER.prefix, 17)
    pages = [signed_in(THEIRS).get(f"/ui/workers/{one}") for one in (id, never)]
    assert [page.status_code for page in pages] == [404, 404]
    assert pages[0].text.replace(id, "") == pages[1].text.replace(never, "")
    assert workers_in(signed_in(THEIRS).get("/ui/workers?state=all").text) == []


def test_a_worker_shows_what_it_runs_and_what_became_of_what_it_ran(site: httpx.Client):
    worker, job = one_claimed(site, made(site, metadata={"rack": 4}))
    said = {"outcomes": {"succeed": 1_234, "retry": 5}, "memory_bytes": 10}
    site.post(f"/api/workers/{worker}/heartbeat", json={"doing": said})
    page = site.get(f"/ui/workers/{worker}").text
    assert jobs_in(page) == [job["id"]]
    assert "<b>1,234</b> succeed" in page
    assert "&#34;rack&#34;: 4" in page
    assert "start_task" in page
    assert "It holds no job" in site.get(f"/ui/workers/{made(site)}").text


@pytest.mark.parametrize(
    "said", [{"outcomes": 7}, {"outcomes": {"succeed": "x", HOSTILE: 1, "fail": [HOSTILE]}}, {"per_second": HOSTILE}]
)
def test_whatever_a_worker_says_of_itself_is_shown_as_text(site: httpx.Client, said: object):
    worker = made(site, name=HOSTILE, version=HOSTILE, queues=[HOSTILE], kinds=[HOSTILE], metadata={HOSTILE: HOSTILE})
    site.post(f"/api/workers/{worker}/heartbeat", json={"doing": said})
    site.post(f"/api/supervisor/workers/{worker}/drain", json={"reason": HOSTILE})
    assert is_harmless(site.get(f"/ui/workers/{worker}").text)
    assert is_harmless(site.get("/ui/workers").text)


def test_a_worker_that_is_silent_for_too_long_stands_out(
    running: Running, site: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    worker = made(site)
    site.post(f"/api/workers/{worker}/heartbeat")
    assert 'class="late"' not in site.get(f"/ui/workers/{worker}").text
    monkeypatch.setattr(workers, "SILENT_US", -1)
    assert "It was last seen" in site.get(f"/ui/workers/{worker}").text
    assert 'class="late"' in site.get("/ui/workers").text


def test_commands_are_those_that_the_state_and_the_key_allow(site: httpx.Client, signed_in: SignedIn):
    id = made(site)
    shown = lambda client=site: buttons(client.get(f"/ui/workers/{id}").text)  # noqa: E731
    ending = ["Drain", "Terminate", "Terminate at once"]
    assert shown() == ending
    site.post(f"/api/workers/{id}/start")
    assert shown() == ["Pause", *ending]
    assert shown(signed_in(READER)) == []
    site.post(f"/api/supervisor/workers/{id}/pause")
    assert shown() == ["Resume", *ending]
    site.post(f"/api/supervisor/workers/{id}/drain", json={"reason": "the end of the day"})
    assert shown() == ["Resume", *ending[1:]]
    assert "the end of the day" in site.get(f"/ui/workers/{id}").text
    site.post(f"/api/supervisor/workers/{id}/terminate")
    assert shown() == ["Terminate at once"]
    site.post(f"/api/supervisor/workers/{id}/terminate", json={"hard": True})
    assert shown() == []


def test_a_browser_pauses_a_worker_and_lets_it_go_on(opens: Opens, looked_at: Running):
    with looked_at.client() as client:
        worker, _ = one_claimed(client)
        page = opens(f"/ui/workers/{worker}")
        page.evaluate("window.sameDocument = true")
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("the disk is full")
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(page.locator(".head .chip")).to_have_text("paused")
        expect(page.locator("#events")).to_contain_text("the disk is full")
        assert client.get(f"/api/workers/{worker}").json()["state"] == "PAUSED"
        client.post(f"/api/supervisor/workers/{worker}/resume")
        expect(page.locator(".head .chip")).to_have_text("running")
        assert page.evaluate("window.sameDocument") is True
