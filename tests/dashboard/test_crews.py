"""Crews: the list with its quotas, and one of them with everything inside."""

from __future__ import annotations

from typing import Any

import httpx
from playwright.sync_api import expect

from keptwork import Keptwork
from keptwork.crews import commands as crews
from tests.dashboard.conftest import Opens, SignedIn, next_page
from tests.http.conftest import READER, THEIRS, Running
from tests.http.flow_stage import beside, worker_beside

CREWS = "/api/crews"
HOSTILE = "<script>alert(1)</script>"


def submitted(client: httpx.Client, task: str = "review it", **more: object) -> Any:
    answer = client.post(CREWS, json={"kind": "review", "task_description": task, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_crews_are_listed_by_state_with_or_without_those_inside_and_with_quotas(site: httpx.Client):
    outer = submitted(site, f"the outer one {HOSTILE}", worker_count=2)
    submitted(site, "the inner one", parent_id=outer["id"])
    submitted(site, "the large one", worker_count=9)
    page = site.get("/ui/crews").text
    assert "the outer one &lt;script&gt;" in page
    assert "the inner one" not in page
    assert 'aria-label="2 of 10 workers of depth 0"' in page
    assert "the inner one" in site.get("/ui/crews", params={"inside": "true"}).text
    waiting = site.get("/ui/crews", params={"state": "PENDING"}).text
    assert ("the large one" in waiting, "the outer one" in waiting) == (True, False)
    assert "No crew is in this state" in site.get("/ui/crews", params={"state": "FAILED"}).text


def test_crews_go_on_at_another_page(site: httpx.Client):
    for n in range(51):
        submitted(site, f"task {n}")
    first = site.get("/ui/crews").text
    assert (">task 50<" in first, ">task 0<" in first) == (True, False)
    older = site.get(next_page(first)).text
    assert (">task 50<" in older, ">task 0<" in older) == (False, True)


def test_without_crews_the_page_says_how_to_have_one(site: httpx.Client):
    assert "keptwork crews submit" in site.get("/ui/crews").text


def test_a_crew_is_shown_with_its_tree_and_what_its_shares_returned(running: Running, site: httpx.Client):
    def declare(app: Keptwork) -> None:
        @app.job(name="count", queue=beside(running))
        async def count(ctx: Any, share: int, shares: int, task: str) -> int:
            return 21

        @app.job(name="review")
        async def review(ctx: Any, share: int, shares: int, task: str) -> int:
            return sum(await ctx.crew(count, task=f"count {HOSTILE}", workers=2))

    id = submitted(site, "all of it", queue=beside(running))["id"]
    with worker_beside(running, declare):
        running.do(lambda store: crews.wait(store, running.ours, id, "20s"))
    page = site.get(f"/ui/crews/{id}").text
    tree = page.partition('<table class="tree">')[2].partition("</table>")[0]
    assert (tree.count("level-0"), tree.count("level-1"), tree.count(">succeeded<")) == (1, 1, 3)
    assert "count &lt;script&gt;" in tree
    assert "42" in page.partition("What its shares returned")[2]
    assert "<script>alert" not in page
    assert "waits for" not in tree


def test_a_crew_that_was_refused_for_its_depth_says_so(site: httpx.Client):
    made = submitted(site)
    for _ in range(6):
        made = submitted(site, parent_id=made["id"])
    page = site.get(f"/ui/crews/{made['id']}")
    assert page.status_code == 200
    assert "it would be at depth 6" in page.text


def test_only_those_who_may_write_are_offered_to_cancel_what_is_not_over(site: httpx.Client, signed_in: SignedIn):
    id = submitted(site)["id"]
    button = f'data-act="POST {CREWS}/{id}/cancel"'
    assert button in site.get(f"/ui/crews/{id}").text
    assert "data-act" not in signed_in(READER).get(f"/ui/crews/{id}").text
    site.post(f"{CREWS}/{id}/cancel")
    assert button not in site.get(f"/ui/crews/{id}").text


def test_a_crew_of_another_tenant_is_not_there(site: httpx.Client, signed_in: SignedIn):
    id = submitted(site, "Ours alone")["id"]
    theirs = signed_in(THEIRS)
    for address in (f"/ui/crews/{id}", "/ui/crews/crew_none", "/ui/crews/nonsense"):
        page = theirs.get(address)
        assert (page.status_code, "<h1>" in page.text, "Ours alone" in page.text) == (404, True, False)
    assert "Ours alone" not in theirs.get("/ui/crews").text


def test_in_a_browser_a_crew_is_cancelled_with_all_inside_it(looked_at: Running, opens: Opens):
    with looked_at.client() as client:
        outer = submitted(client)["id"]
        page = opens(f"/ui/crews/{outer}")
        page.evaluate("window.same = true")
        submitted(client, "a later one inside", parent_id=outer)
    expect(page.get_by_role("link", name="a later one inside")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".tree").get_by_text("canceled")).to_have_count(2)
    assert page.evaluate("window.same") is True
