"""The page of what people are asked."""

from __future__ import annotations

import re
from html import unescape

import httpx
from playwright.sync_api import expect

from keptwork import Context
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from tests.dashboard.conftest import Opens, SignedIn
from tests.http.conftest import OURS, READER, THEIRS, Running
from tests.http.flow_stage import SIGNED, beside, run, worker_beside, workstream
from tests.http.test_workers import until


async def send(ctx: Context) -> None:
    await ctx.wait_for_approval("Send 1,200 mails?", details={"count": 1_200})


def asked_by_ops(running: Running) -> None:
    flow = Flow.model_validate({"name": "guarded", "steps": [{"id": "a", "approval": {"by": "ops", "expires": "4h"}}]})
    running.do(lambda store: flows.start(store, flow, tenant_id=running.ours))


def test_open_questions_are_shown_with_who_asks_and_who_may_answer(running: Running, site: httpx.Client) -> None:
    assert "Nobody is asked anything." in site.get("/ui/approvals").text
    id = run(site)["id"]
    page = site.get("/ui/approvals").text
    assert "Ship it?" in page
    assert f'<b>signed</b> <a class="id" href="/ui/flows/{id}"' in page
    assert "anyone who may approve" in page
    assert page.count('data-act="POST /api/approvals/') == 2
    asked_by_ops(running)
    page = site.get("/ui/approvals").text
    assert "<b>ops</b>" in page
    assert "expires <time" in page
    assert "approve:ops" in page
    assert page.count('data-act="POST /api/approvals/') == 2
    known = running.keys.known[OURS]
    running.keys.known[OURS] = known._replace(scopes=known.scopes | {"approve:ops"})
    assert site.get("/ui/approvals").text.count('data-act="POST /api/approvals/') == 4


def test_what_a_job_asks_is_there_too_and_in_its_flow(running: Running, site: httpx.Client) -> None:
    definition = {"name": "asks", "steps": [{"id": "send", "call": "tests.dashboard.test_approvals:send"}]}
    flow = Flow.model_validate(definition)
    with worker_beside(running):
        ref = running.do(lambda store: flows.start(store, flow, tenant_id=running.ours, queue=beside(running)))
        until(lambda: bool(site.get("/api/approvals").json()["approvals"]))
    page = site.get("/ui/approvals").text
    assert "Send 1,200 mails?" in page
    assert f'<b>asks</b> <a class="id" href="/ui/flows/{ref.public_id}"' in page
    page = site.get(f"/ui/flows/{ref.public_id}").text
    assert "Send 1,200 mails?" in page
    assert 'aria-label="send: asks"' in page
    (question,) = site.get(f"/api/workstreams/{ref.public_id}").json()["questions"]
    assert (question["step"], question["question"]) == ("send", "Send 1,200 mails?")


def test_what_was_decided_says_by_whom_and_why(site: httpx.Client) -> None:
    assert "Nothing was decided yet." in site.get("/ui/approvals", params={"show": "decided"}).text
    run(site)
    run(site)
    yes, no = (one["id"] for one in site.get("/api/approvals").json()["approvals"])
    site.post(f"/api/approvals/{yes}/approve", json={"reason": "looks right"})
    site.post(f"/api/approvals/{no}/reject", json={"reason": "not today"})
    run(site)
    page = site.get("/ui/approvals", params={"show": "decided"}).text
    assert re.findall(r'<span class="chip (\w+)">(\w+)</span>', page) == [("good", "approved"), ("bad", "rejected")]
    assert "looks right" in page
    assert "not today" in page
    assert "key:k1" in page
    assert "data-act" not in page
    assert "not today" not in site.get("/ui/approvals").text


def test_a_reader_sees_questions_and_no_buttons(site: httpx.Client, signed_in: SignedIn) -> None:
    run(site)
    page = signed_in(READER).get("/ui/approvals").text
    assert "Ship it?" in page
    assert "data-act" not in page


def test_another_tenants_questions_are_not_there(site: httpx.Client, signed_in: SignedIn) -> None:
    run(site)
    assert "Ship it?" not in signed_in(THEIRS).get("/ui/approvals").text


def test_questions_go_on_after_fifty(running: Running, site: httpx.Client) -> None:
    steps = [{"id": f"s{number}", "approval": {"question": f"Question {number}?"}} for number in range(52)]
    workstream(site, {"name": "many", "steps": steps})
    first = site.get("/ui/approvals").text
    (older,) = re.findall(r'href="([^"]+)">Older', first)
    found = re.findall(r"<h3[^>]*>Question (\d+)\?", first + site.get(unescape(older)).text)
    assert sorted(map(int, found)) == list(range(52))


def test_a_question_is_answered_by_a_button_with_a_comment(looked_at: Running, opens: Opens) -> None:
    with looked_at.client() as client:
        page = opens("/ui/approvals")
        expect(page.get_by_text("Nobody is asked anything.")).to_be_visible()
        id = run(client, SIGNED)["id"]
        page.get_by_role("button", name="Reject").click()
        expect(page.locator("#sure-what")).to_have_text("Reject: Ship it?")
        page.get_by_label("Comment").fill("not on a Friday")
        page.get_by_role("dialog").get_by_role("button", name="Reject").click()
        expect(page.get_by_text("Nobody is asked anything.")).to_be_visible()
        assert client.get(f"/api/runs/{id}").json()["state"] == "FAILED"
    page.get_by_role("link", name="Decided").click()
    expect(page.get_by_text("not on a Friday")).to_be_visible()
