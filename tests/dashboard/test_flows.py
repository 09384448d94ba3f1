"""The pages of runs and workstreams: lists, and everything about one."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from keptwork.dashboard.flow_graph import MOST_STEPS
from keptwork.flows import commands as flows
from keptwork.flows.definition import Flow
from keptwork.flows.transaction import Actor
from tests.dashboard.conftest import Opens, SignedIn
from tests.http.conftest import OURS, READER, THEIRS, Running
from tests.http.flow_stage import (
    GRAPH,
    HERE,
    SIGNED,
    TWICE,
    beside,
    failed_workstream,
    run,
    step_named,
    worker_beside,
    workstream,
)
from tests.http.test_workers import until

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'
BUTTON = re.compile(r'data-act="POST ([^"]+)"')


def started(running: Running, definition: dict[str, Any], inputs: dict[str, Any] | None = None, **how: Any) -> str:
    """A flow, as whoever has the database may start it."""
    flow = Flow.model_validate(definition)
    ref = running.do(lambda store: flows.start(store, flow, inputs, tenant_id=running.ours, **how))
    return ref.public_id


def page_of(site: httpx.Client, id: str, **query: str) -> str:
    answer = site.get(f"/ui/flows/{id}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.text


def deeds(page: str, id: str) -> set[str]:
    """What the buttons of a page do to that flow."""
    return {address.rpartition("/")[2] for address in BUTTON.findall(page) if f"/{id}/" in address}


def listed(site: httpx.Client, **query: str) -> list[str]:
    answer = site.get("/ui/flows", params=query)
    assert answer.status_code == 200, answer.text
    return re.findall(r'<a href="/ui/flows/([^"]+)"', answer.text)


# --- lists


def test_flows_are_listed_by_kind_and_by_how_they_stand(site: httpx.Client) -> None:
    assert "No workstreams yet." in site.get("/ui/flows").text
    asking, failed, gone = workstream(site)["id"], failed_workstream(site), workstream(site)["id"]
    site.post(f"/api/workstreams/{gone}/abandon", json={})
    one = run(site)["id"]
    assert listed(site) == [gone, failed, asking]
    assert listed(site, state="active") == [asking]
    assert listed(site, state="asking") == [asking]
    assert listed(site, state="failed") == [failed]
    assert listed(site, state="ended") == [gone]
    assert listed(site, kind="run") == listed(site, kind="run", state="asking") == [one]
    assert listed(site, kind="run", state="failed") == []
    assert "No run is like that." in site.get("/ui/flows", params={"kind": "run", "state": "failed"}).text


def test_a_list_tells_how_far_each_is_and_what_was_wrong(site: httpx.Client) -> None:
    id = workstream(site, TWICE)["id"]
    first, _ = (one["id"] for one in site.get("/api/approvals").json()["approvals"])
    site.post(f"/api/approvals/{first}/approve", json={})
    site.post(f"/api/workstreams/{id}/hold", json={})
    page = site.get("/ui/flows").text
    assert 'aria-label="1 of 2 steps done"' in page
    assert ">held</span>" in page
    failed_workstream(site)
    page = site.get("/ui/flows", params={"state": "failed"}).text
    assert re.search(r'<td class="long">[^<]*sign[^<]*no', page)


def test_a_list_goes_on_after_fifty_and_keeps_what_was_chosen(running: Running, site: httpx.Client) -> None:
    made = [started(running, GRAPH | {"name": f"graph-{number}"}, hold=True) for number in range(52)][::-1]
    first = site.get("/ui/flows", params={"state": "active", "text": "graph"})
    (older,) = re.findall(r'href="([^"]+)">Older', first.text)
    assert "state=active" in older
    assert "text=graph" in older
    second = site.get(unescape(older)).text
    found = re.findall(r'<a href="/ui/flows/([^"]+)"', first.text + second)
    assert found == made
    assert "Older" not in second


def test_flows_are_found_by_their_text(site: httpx.Client) -> None:
    workstream(site)
    other = workstream(site, GRAPH | {"name": "nightly"})["id"]
    assert listed(site, text="NIGHT") == listed(site, text="night", state="asking") == [other]
    assert len(listed(site, text="")) == 2


def test_a_flow_inside_another_that_asks_is_told_as_the_outer_one(running: Running, site: httpx.Client) -> None:
    inner = Flow.model_validate(SIGNED | {"name": "inner", "kind": "run"})
    outer = {"name": "outer", "steps": [{"id": "sub", "flow": "inner"}]}
    with worker_beside(running):
        id = started(running, outer, library={"inner": inner}, queue=beside(running))
        until(lambda: bool(site.get("/api/approvals").json()["approvals"]))
    assert listed(site, state="asking") == [id]
    assert listed(site, state="asking", kind="run") == []
    page = page_of(site, id)
    (within,) = re.findall(r'Flow <a class="id" href="/ui/flows/(run_[^"]+)"', page)
    assert "flow inner" in page
    assert f'inside of <a class="id" href="/ui/flows/{id}"' in page_of(site, within)
    assert "Ship it?" in page_of(site, within)


@pytest.mark.parametrize("query", [{"kind": "job"}, {"state": "S_RUNNING"}, {"after": "nowhere"}, {"text": "a" * 201}])
def test_what_a_list_cannot_be_asked_is_said_in_a_page(site: httpx.Client, query: dict[str, str]) -> None:
    answer = site.get("/ui/flows", params=query)
    assert answer.status_code in (400, 422)
    assert "<h1>" in answer.text


# --- one flow


def test_a_workstream_is_shown_with_its_graph_its_steps_and_what_it_asks(running: Running, site: httpx.Client) -> None:
    id = started(running, GRAPH | {"inputs": {"day": {"default": "monday"}}})
    page = page_of(site, id)
    assert page.count('<a href="#step-') == 2
    assert '<tbody id="step-after">' in page
    assert "after sign" in page
    assert "0 of 2" in page
    assert "monday" in page
    assert "dependencies_met" in page
    (question,) = site.get("/api/approvals").json()["approvals"]
    assert f'data-act="POST /api/approvals/{question["id"]}/approve"' in page
    assert f'data-live="/api/events/stream?correlation_id={id}"' in page


def test_buttons_are_there_when_the_flow_allows_what_they_do(site: httpx.Client) -> None:
    one = workstream(site)["id"]
    step = step_named(site, one, "after")["id"]
    page = page_of(site, one)
    assert deeds(page, one) == {"hold", "resume", "abandon", "fork"}
    assert deeds(page, step) == {"skip"}
    site.post(f"/api/workstreams/{one}/hold", json={})
    assert deeds(page_of(site, one), one) == {"release", "resume", "abandon", "fork"}
    failed = failed_workstream(site)
    page = page_of(site, failed)
    assert deeds(page, failed) == {"hold", "retry", "resume", "abandon", "fork"}
    assert deeds(page, step_named(site, failed, "sign")["id"]) == {"skip", "reset"}
    site.post(f"/api/workstreams/{failed}/abandon", json={})
    page = page_of(site, failed)
    assert deeds(page, failed) == {"fork"}
    assert deeds(page, step_named(site, failed, "sign")["id"]) == set()
    other = run(site)["id"]
    assert deeds(page_of(site, other), other) == {"hold", "cancel"}
    site.post(f"/api/runs/{other}/cancel", json={})
    assert deeds(page_of(site, other), other) == set()


def test_every_button_of_a_flow_is_a_route_that_is_there(site: httpx.Client) -> None:
    """Whatever it answers to an empty request: nothing is not found, and no method is refused."""
    for id in (workstream(site)["id"], failed_workstream(site), run(site)["id"]):
        for address in BUTTON.findall(page_of(site, id)):
            assert site.post(address, json={"reason": 1}).status_code == 422, address


def test_a_reader_sees_everything_and_no_buttons(site: httpx.Client, signed_in: SignedIn) -> None:
    for id in (workstream(site)["id"], failed_workstream(site), run(site)["id"]):
        page = page_of(signed_in(READER), id)
        assert "Ship it?" in page or "sign" in page
        assert "data-act" not in page


def test_whoever_may_not_answer_may_not_skip_a_question_or_keep_its_answer(
    running: Running, site: httpx.Client
) -> None:
    """The API would refuse it: both are answering in somebody's place."""
    gates = [
        {"id": "a", "approval": {}},
        {"id": "b", "approval": {"by": "ops"}, "depends_on": ["a"]},
        {"id": "beside", "approval": {}},
    ]
    id = started(running, {"name": "asks", "steps": gates})
    step = step_named(site, id, "b")["id"]
    page = page_of(site, id)
    assert deeds(page, step) == set()
    assert page.count(f"/api/workstreams/{id}/fork") == 1
    assert "&#34;from_step&#34;: &#34;a&#34;" in page
    assert site.post(f"/api/workstreams/{id}/fork", json={"from_step": "beside"}).status_code == 403
    known = running.keys.known[OURS]
    running.keys.known[OURS] = known._replace(scopes=known.scopes | {"approve:ops"})
    page = page_of(site, id)
    assert deeds(page, step) == {"skip"}
    assert page.count(f"/api/workstreams/{id}/fork") == 2


def test_another_tenants_flow_is_not_there(site: httpx.Client, signed_in: SignedIn) -> None:
    id, one = workstream(site)["id"], run(site)["id"]
    for unknown in (id, one, "ws_mistyped", "job_1", "nothing"):
        answer = signed_in(THEIRS).get(f"/ui/flows/{unknown}")
        assert answer.status_code == 404
        assert "graph" not in answer.text
    assert listed(signed_in(THEIRS)) == []


def test_what_flows_were_told_is_shown_as_text(running: Running, site: httpx.Client) -> None:
    definition = {
        "name": "hostile",
        "inputs": {"said": {"default": HOSTILE}},
        "steps": [
            {"id": "sign", "approval": {"question": "${inputs.said}"}},
            {"id": "b", "command": ["echo", HOSTILE], "depends_on": ["sign"]},
        ],
    }
    id = started(running, definition, actor=Actor("ann", HOSTILE))
    (question,) = site.get("/api/approvals").json()["approvals"]
    for page in (page_of(site, id), site.get("/ui/approvals").text, site.get("/ui/flows").text):
        assert "<img" not in page.replace('<img src="/ui/static', "")
        assert "<script>" not in page
    site.post(f"/api/approvals/{question['id']}/reject", json={"reason": HOSTILE})
    for page in (page_of(site, id), site.get("/ui/approvals?show=decided").text, site.get("/ui/flows").text):
        assert "<img" not in page.replace('<img src="/ui/static', "")
        assert "<script>" not in page
        assert "onerror=alert(1)" in page


def test_a_step_shows_what_came_of_it_its_job_and_the_elements_of_its_list(
    running: Running, site: httpx.Client
) -> None:
    definition = {
        "name": "listed",
        "steps": [
            {"id": "build", "call": f"{HERE}:build", "with": {"version": "1.9"}},
            {"id": "each", "call": f"{HERE}:ship", "with": {"version": "${item}"}, "for_each": {"items": ["eu", "us"]}},
            {"id": "long", "call": f"{HERE}:build", "with": {"version": "y" * 3_000}},
        ],
    }
    with worker_beside(running):
        id = started(running, definition, queue=beside(running))
        until(lambda: site.get(f"/api/workstreams/{id}").json()["state"] == "S_SUCCESS")
    page = page_of(site, id)
    assert "&#34;version&#34;: &#34;1.9&#34;" in page
    assert page.count("/ui/jobs/job_") == 4
    assert "each[1]" in page
    assert "2 of 2" in page
    assert 'aria-label="each: success 2/2"' in page
    assert "There is more of it" in page
    assert "y" * 2_001 not in page


def test_a_flow_of_very_many_steps_has_pages_of_them_and_no_drawing(running: Running, site: httpx.Client) -> None:
    steps = [{"id": f"s{number}", "approval": {}} for number in range(MOST_STEPS + 1)]
    id = started(running, {"name": "many", "steps": steps}, hold=True)
    page = page_of(site, id)
    assert "<svg" not in page
    assert "too many steps" in page
    assert page.count('<tbody id="step-') == MOST_STEPS
    (more,) = re.findall(r'href="([^"]+)">More steps', page)
    second = site.get(unescape(more)).text
    assert re.findall(r'<tbody id="step-([^"]+)"', second) == [f"s{MOST_STEPS}"]


def test_forks_and_what_they_were_forked_from_lead_to_each_other(site: httpx.Client) -> None:
    id = workstream(site)["id"]
    fork = site.post(f"/api/workstreams/{id}/fork", json={"from_step": "sign"}).json()["id"]
    assert f'href="/ui/flows/{fork}"' in page_of(site, id).partition("Forks of it")[2]
    assert f'forked from <a class="id" href="/ui/flows/{id}"' in page_of(site, fork)


def test_what_is_told_to_the_outside_is_shown(running: Running, site: httpx.Client) -> None:
    id = started(running, SIGNED, webhook={"url": "https://example.org/hook?token=hidden"})
    site.post(f"/api/workstreams/{id}/abandon", json={})
    page = page_of(site, id)
    assert "https://example.org/hook" in page
    assert "hidden" not in page.partition("Webhooks")[2]


# --- in a browser


def test_a_flow_goes_on_before_ones_eyes(looked_at: Running, opens: Opens) -> None:
    with looked_at.client() as client:
        id = workstream(client)["id"]
        page = opens(f"/ui/flows/{id}")
        expect(page.get_by_role("link", name="sign: asks")).to_be_visible()
        page.locator("#of-sign summary").click()
        (question,) = client.get("/api/approvals").json()["approvals"]
        client.post(f"/api/approvals/{question['id']}/approve", json={})
    expect(page.get_by_role("link", name="sign: success")).to_be_visible()
    expect(page.get_by_role("link", name="after: asks")).to_be_visible()
    expect(page.locator("#of-sign")).to_have_attribute("open", "")
    page.get_by_role("link", name="after: asks").click()
    assert page.url.endswith("#step-after")


def test_a_flow_is_abandoned_by_a_button_that_asks_first(looked_at: Running, opens: Opens) -> None:
    with looked_at.client() as client:
        id = workstream(client)["id"]
        page = opens(f"/ui/flows/{id}")
        page.get_by_role("button", name="Abandon").click()
        expect(page.get_by_text("It cannot be taken up again.")).to_be_visible()
        page.get_by_role("button", name="Not now").click()
        assert client.get(f"/api/workstreams/{id}").json()["state"] == "S_RUNNING"
        page.get_by_role("button", name="Abandon").click()
        page.get_by_label("Why").fill("not needed")
        page.get_by_role("dialog").get_by_role("button", name="Abandon").click()
        expect(page.get_by_text("Abandon: done.")).to_be_visible()
        expect(page.locator(".head .chip")).to_have_text("abandoned")
        expect(page.get_by_text("not needed").first).to_be_visible()
        assert client.get(f"/api/workstreams/{id}").json()["reason"] == "not needed"


def test_a_narrow_screen_shows_a_flow_without_moving_sideways(looked_at: Running, opens: Opens) -> None:
    with looked_at.client() as client:
        id = failed_workstream(client)
    page = opens(f"/ui/flows/{id}")
    for address in (f"/ui/flows/{id}", "/ui/flows", "/ui/approvals", "/ui/approvals?show=decided"):
        page.set_viewport_size({"width": 400, "height": 800})
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") == 400
