"""Agents: the list, and one of them with what was asked, said, answered and paid."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from keptwork.agents import commands as agents
from keptwork.store import Store
from tests.dashboard.conftest import Opens, SignedIn, next_page
from tests.http.conftest import READER, THEIRS, Running
from tests.http.test_agent_jobs import AGENTS, given, worked
from tests.worker.agent_stage import uses

HOSTILE = '<script>alert(1)</script> "><img src=x onerror=alert(2)>'


def made(running: Running, *descriptions: str) -> list[str]:
    """The ids of agent jobs that nobody carries out."""

    async def start(store: Store) -> list[str]:
        news = [agents.NewAgent(text, running.ours, queue=f"none-{running.ours}") for text in descriptions]
        return [(await agents.start(store, new)).id for new in news]

    return running.do(start)


def test_agent_jobs_are_listed_the_newest_first_by_state_and_page_by_page(running: Running, site: httpx.Client):
    ids = made(running, *(f"task {n}" for n in range(51)))
    first = site.get("/ui/agents").text
    assert first.index(">task 50<") < first.index(">task 49<") < first.index(">task 1<")
    assert ">task 0<" not in first
    older = site.get(next_page(first)).text
    assert ">task 0<" in older
    assert ">task 1<" not in older
    site.post(f"{AGENTS}/{ids[7]}/cancel")
    failed = site.get("/ui/agents", params={"state": "FAILED"}).text
    assert ">task 7<" in failed
    assert ">task 8<" not in failed
    assert "No agent job is in this state" in site.get("/ui/agents", params={"state": "COMPLETED"}).text
    assert site.get("/ui/agents", params={"state": "asleep"}).status_code == 422


def test_without_agents_the_page_says_how_to_have_one(site: httpx.Client):
    assert "keptwork agent" in site.get("/ui/agents").text


def test_an_agent_is_shown_with_its_answer_conversation_calls_and_record(running: Running, site: httpx.Client):
    queue = f"agents-{running.ours}"
    id = given(site, f"Fix the typo {HOSTILE}", queue=queue, tier="opus", budget_usd="0.50", correlation_id="c-17")[
        "id"
    ]
    worked(running, queue, uses(("read_file", {"path": HOSTILE}), text="I look."), f"It is done {HOSTILE}")
    page = site.get(f"/ui/agents/{id}")
    said = page.text
    assert page.status_code == 200
    talk = said.partition('<ol class="talk">')[2].partition("</ol>")[0]
    order = ("What it was told beforehand", "I look.", "Uses <code>read_file", "What the tool answered", "It is done")
    places = [talk.index(text) for text in order]
    assert places == sorted(places)
    assert ("of $0.50 for this job" in said, said.count("#turn 0.")) == (True, 2)
    assert ("offline-opus" in said, "it was asked for" in said, "c-17" in said) == (True, True, True)
    assert "The record of its end" in said
    for bad in ("<script>", "<img src=x"):
        assert bad not in said
    assert "&lt;script&gt;alert(1)" in said
    assert site.get(f"/ui/agents/{given(site)['job_id']}").status_code == 200


def test_a_long_conversation_goes_on_at_another_page(running: Running, site: httpx.Client):
    queue = f"agents-{running.ours}"
    id = given(site, "Ask away", queue=queue)["id"]
    worked(running, queue, "The very end.")
    place = site.get(f"{AGENTS}/{id}/transcript", params={"limit": 2}).json()["next"]
    rest = site.get(f"/ui/agents/{id}", params={"after": place}).text
    talk = rest.partition('<ol class="talk">')[2].partition("</ol>")[0]
    assert "The very end." in talk
    assert "What it was told beforehand" not in talk
    assert "From the beginning" in rest
    assert site.get(f"/ui/agents/{id}", params={"after": "nonsense"}).status_code == 400


def test_only_those_who_may_write_are_offered_to_cancel_what_is_not_over(
    running: Running, site: httpx.Client, signed_in: SignedIn
):
    (id,) = made(running, "Wait")
    button = f'data-act="POST {AGENTS}/{id}/cancel"'
    assert button in site.get(f"/ui/agents/{id}").text
    assert "data-act" not in signed_in(READER).get(f"/ui/agents/{id}").text
    site.post(f"{AGENTS}/{id}/cancel", json={"reason": "not needed"})
    over = site.get(f"/ui/agents/{id}").text
    assert button not in over
    assert "not needed" in over


@pytest.mark.parametrize("unknown", [False, True])
def test_an_agent_of_another_tenant_is_not_there(running: Running, signed_in: SignedIn, unknown: bool):
    (id,) = made(running, "Ours alone")
    page = signed_in(THEIRS).get(f"/ui/agents/{'agent_none' if unknown else id}")
    assert page.status_code == 404
    assert "<h1>" in page.text
    assert "Ours alone" not in page.text
    assert "Ours alone" not in signed_in(THEIRS).get("/ui/agents").text


def test_in_a_browser_an_agent_is_cancelled_after_a_question_and_the_page_keeps_up(looked_at: Running, opens: Opens):
    first, second = made(looked_at, f"Wait {HOSTILE}", "Wait as well")
    page = opens(f"/ui/agents/{first}")
    page.evaluate("window.same = true")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("Why?").fill("no longer wanted")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".head .chip")).to_have_text("failed")
    expect(page.locator(".trouble")).to_contain_text("no longer wanted")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert page.evaluate("window.same") is True
    page = opens(f"/ui/agents/{second}")
    looked_at.do(lambda store: agents.cancel(store, looked_at.ours, second))
    expect(page.locator(".head .chip")).to_have_text("failed")
