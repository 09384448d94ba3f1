"""What belongs to flows, over HTTP: approvals, templates, crews, schedules."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from keptwork import Keptwork
from keptwork.core.lifecycles import CREW
from keptwork.crews import commands as crews
from keptwork.errors import FlowBusy
from keptwork.flows import commands as flows
from tests.http.conftest import OURS, Running
from tests.http.flow_stage import (
    GRAPH,
    SIGNED,
    beside,
    failed_workstream,
    run,
    step_named,
    worker_beside,
    workstream,
)


def twice(client: httpx.Client, method: str, path: str, **body: Any) -> Any:
    """The same request under one key, twice: done once, and answered the same."""
    key = {"Idempotency-Key": f"{method} {path}"}
    first, second = (client.request(method, path, json=body, headers=key) for _ in range(2))
    assert (first.status_code, first.content) == (second.status_code, second.content), first.text
    assert second.headers.get("Idempotency-Replayed") == "true"
    return first.json()


DEEDS = [
    ("run", "hold"), ("run", "cancel"), ("run", "approve"), ("run", "reject"), ("held run", "release"),
    ("workstream", "hold"), ("workstream", "abandon"), ("workstream", "resume"), ("held workstream", "release"),
    ("failed workstream", "retry"), ("failed step", "skip"), ("failed step", "reset"),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "deed"), DEEDS)
def test_whatever_is_done_to_a_flow_is_done_once_under_one_key(client: httpx.Client, thing: str, deed: str) -> None:
    held: dict[str, Any] = {"hold": True} if thing.startswith("held") else {}
    if thing.endswith("run"):
        path, flow = "/runs", run(client, **held)["id"]
    else:
        failed = thing.startswith("failed")
        path, flow = "/api/workstreams", failed_workstream(client) if failed else workstream(client, **held)["id"]
    at = f"/api/steps/{step_named(client, flow, 'sign')['id']}" if thing == "failed step" else f"{path}/{flow}"
    before = len(client.get(f"{path}/{flow}/events").json()["events"])
    key = {"Idempotency-Key": deed}
    first = client.post(f"{at}/{deed}", headers=key)
    once = len(client.get(f"{path}/{flow}/events").json()["events"])
    second = client.post(f"{at}/{deed}", headers=key)
    assert (first.status_code, first.content) == (200, second.content), first.text
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len(client.get(f"{path}/{flow}/events").json()["events"]) == once
    assert once > before or deed in ("hold", "resume")  # which move nothing here
    other = client.post(f"{at}/{deed}", headers=key, json={"reason": "another"})
    assert (other.status_code, other.json()["type"]) == (422, "urn:keptwork:problem:key-reused")


def test_a_flow_that_a_worker_moved_meanwhile_is_looked_at_again_with_its_key(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, hold = [3], flows.hold

    async def moved(*what: Any) -> None:
        left[0] -= 1
        if left[0]:
            raise FlowBusy(tries=1)
        await hold(*what)

    monkeypatch.setattr(flows, "hold", moved)
    id = workstream(client)["id"]
    answer = client.post(f"/api/workstreams/{id}/hold", headers={"Idempotency-Key": "busy"})
    assert (answer.status_code, left) == (200, [0])
    left[0] = 1_000
    busy = client.post(f"/api/workstreams/{id}/hold", headers={"Idempotency-Key": "too busy"})
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")


NAMED = [
    ("GET", "/api/templates/{}"), ("POST", "/api/templates/{}/start"), ("GET", "/api/breakers/{}"),
    ("GET", "/api/schedules/{}"), ("POST", "/api/schedules/{}/pause"), ("DELETE", "/api/schedules/{}"),
    ("GET", "/api/webhooks/{}"), ("GET", "/api/steps/{}"), ("POST", "/api/queues/{}/pause"),
    ("GET", "/api/runs?name={}"), ("GET", "/api/steps?flow={}"), ("GET", "/api/webhooks?flow={}"),
    ("GET", "/api/webhooks?state={}"), ("GET", "/api/approvals?job={}"), ("GET", "/api/templates?name={}"),
]  # fmt: skip


@pytest.mark.parametrize("text", ["a%00b", "%ff%fe", "%ed%a0%80", "x" * 600, "%20", "..%2f..", "%F0%9F%98%80"])
def test_no_name_breaks_anything(client: httpx.Client, text: str) -> None:
    for method, path in NAMED:
        assert client.request(method, path.replace("{}", text)).status_code in (200, 404, 405, 422), path


# --- approvals


def test_what_a_workstream_asks_is_found_and_answered(client: httpx.Client) -> None:
    id = workstream(client)["id"]
    (question,) = client.get("/api/approvals").json()["approvals"]
    assert (question["step"], question["state"], question["scope"]) == ("sign", "open", None)
    assert question["details"] == [{"step": "after", "approval": {}}]
    approved = twice(client, "POST", f"/api/approvals/{question['id']}/approve", reason="fine")
    assert (approved["state"], approved["decided_by"], approved["comment"]) == ("approved", "key:k1", "fine")
    assert approved["digest"] == question["digest"]
    assert client.post(f"/api/approvals/{question['id']}/approve").status_code == 200
    other = client.post(f"/api/approvals/{question['id']}/reject")
    assert (other.status_code, other.json()["type"]) == (409, "urn:keptwork:problem:already-decided")
    (left,) = client.get("/api/approvals").json()["approvals"]
    assert left["step"] == "after"
    assert client.post(f"/api/approvals/{left['id']}/reject").json()["state"] == "rejected"
    assert client.get(f"/api/workstreams/{id}").json()["state"] == "S_FAILED"
    assert client.get("/api/approvals").json()["approvals"] == []


def test_approvals_come_by_page_open_or_all(client: httpx.Client) -> None:
    made = [run(client)["id"] for _ in range(3)]
    client.post(f"/runs/{made[0]}/approve")
    every = client.get("/api/approvals", params={"all": True}).json()["approvals"]
    first = client.get("/api/approvals", params={"all": True, "limit": 2}).json()
    rest = client.get("/api/approvals", params={"all": True, "limit": 2, "after": first["next"]}).json()
    assert [*first["approvals"], *rest["approvals"]] == every
    assert len(every) == 3
    assert rest["next"] is None
    assert len(client.get("/api/approvals").json()["approvals"]) == 2


# --- templates


def test_a_template_has_versions_and_is_started_by_name_or_by_version(client: httpx.Client) -> None:
    first = twice(client, "POST", "/api/templates", definition=GRAPH)
    assert (first["name"], first["version"], first["kind"]) == ("graph", 1, "workstream")
    assert client.post("/api/templates", json={"definition": GRAPH}).json()["id"] == first["id"]
    newer = client.post("/api/templates", json={"definition": {**GRAPH, "max_retries": 1}}).json()
    assert newer["version"] == 2
    assert client.get("/api/templates/graph").json()["definition"]["max_retries"] == 1
    assert client.get(f"/api/templates/{first['id']}").json()["definition"] == GRAPH
    started = twice(client, "POST", f"/api/templates/{first['id']}/start", reason="try")
    whole = client.get(f"/api/workstreams/{started['id']}").json()
    assert (started["created"], whole["template"]) == (True, {"id": first["id"], "version": 1})
    client.post("/api/templates", json={"definition": {**SIGNED, "kind": "run"}})
    assert client.post("/api/templates/signed/start", json={"key": "k"}).json()["kind"] == "run"
    names = [(one["name"], one["version"]) for one in client.get("/api/templates").json()["templates"]]
    assert names == [("graph", 2), ("signed", 1)]
    seen: list[tuple[str, int]] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/api/templates", params={"all": True, "limit": 1, **after}).json()
        seen += [(one["name"], one["version"]) for one in page["templates"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == [("graph", 2), ("graph", 1), ("signed", 1)]
    assert client.post("/api/templates/none/start").status_code == 404


# --- crews


def test_a_crew_is_submitted_carried_out_and_shown(client: httpx.Client, running: Running) -> None:
    def declare(app: Keptwork) -> None:
        @app.job(name="review")
        async def review(ctx: Any, share: int, shares: int, task: str, factor: int) -> int:
            return share * factor

    body = {"kind": "review", "task_description": "all of it", "worker_count": 3, "payload": {"factor": 2}}
    body["queue"] = beside(running)
    with client.stream("GET", "/api/events/stream", params={"entity": "crew"}) as stream:
        made = twice(client, "POST", "/api/crews", **body)
        assert (made["status"], made["worker_count"], made["depth"], made["created"]) == ("RUNNING", 3, 0, True)
        with worker_beside(running, declare):
            for line in stream.iter_lines():
                if line.startswith("data: ") and '"to_state": "COMPLETED"' in line:
                    break
    whole = client.get(f"/api/crews/{made['id']}").json()
    assert (whole["state"], whole["result"], len(whole["shares"])) == ("COMPLETED", [0, 2, 4], 3)
    refused = client.post(f"/api/crews/{made['id']}/cancel")
    assert (refused.status_code, refused.json()["from"], refused.json()["trigger"]) == (409, "COMPLETED", "cancel")
    assert refused.json()["allowed"] == list(CREW.allowed_from("COMPLETED")) == []


def test_a_share_that_goes_on_no_longer_says_what_it_waited_for(client: httpx.Client, running: Running) -> None:
    def declare(app: Keptwork) -> None:
        @app.job(name="review")
        async def review(ctx: Any, share: int, shares: int, task: str) -> str:
            await ctx.sleep("1ms")
            return "done"

    made = client.post("/api/crews", json={"kind": "review", "task_description": "t", "queue": beside(running)}).json()
    with worker_beside(running, declare):
        running.do(lambda store: crews.wait(store, running.ours, made["id"], "20s"))
    (share,) = client.get(f"/api/crews/{made['id']}").json()["shares"]
    assert (share["state"], share["waits_for"]) == ("succeeded", None)


def test_a_crew_is_cancelled_with_those_inside_it(client: httpx.Client) -> None:
    outer = client.post("/api/crews", json={"kind": "review", "task_description": "t"}).json()
    inner = client.post(
        "/api/crews", json={"kind": "review", "task_description": "t", "parent_id": outer["id"], "timeout": "1h"}
    ).json()
    assert (inner["depth"], inner["parent_id"], inner["deadline_at"] is None) == (1, outer["id"], False)
    assert [one["id"] for one in client.get("/api/crews").json()["crews"]] == [outer["id"]]
    both = client.get("/api/crews", params={"inside": True, "limit": 1}).json()
    rest = client.get("/api/crews", params={"inside": True, "limit": 1, "after": both["next"]}).json()
    assert [one["id"] for one in [*both["crews"], *rest["crews"]]] == [inner["id"], outer["id"]]
    ended = twice(client, "POST", f"/api/crews/{outer['id']}/cancel", reason="no need")
    assert (ended["status"], set(ended["cancelled"])) == ("CANCELED", {outer["id"], inner["id"]})
    found = client.get("/api/crews", params={"state": "canceled"}).json()["crews"]
    assert [one["id"] for one in found] == [outer["id"]]
    again = client.post("/api/crews", json={"kind": "review", "task_description": "t", "parent_id": outer["id"]})
    assert (again.status_code, again.json()["status"]) == (201, "FAILED")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "review"},
        {"kind": "review", "task_description": " "},
        {"kind": "review", "task_description": "t", "worker_count": 0},
        {"kind": "review", "task_description": "t", "worker_count": 11},
        {"kind": "review", "task_description": "t", "payload": {"share": 1}},
        {"kind": "review", "task_description": "t", "timeout": "soon"},
        {"kind": "review", "task_description": "t", "timeout": -1},
    ],
)
def test_what_is_no_crew_is_refused_and_nothing_is_stored(client: httpx.Client, body: dict[str, Any]) -> None:
    assert client.post("/api/crews", json=body).status_code == 422
    assert client.get("/api/crews").json()["crews"] == []


def test_a_parent_that_is_none_is_not_there(client: httpx.Client) -> None:
    answer = client.post("/api/crews", json={"kind": "a", "task_description": "t", "parent_id": "nonsense"})
    assert answer.status_code == 404


def test_quotas_are_set_by_those_who_administer(client: httpx.Client, running: Running) -> None:
    assert client.get("/api/crews/quotas").json()["quotas"][1] == {"depth": 1, "quota": 8, "in_use": 0}
    assert client.put("/api/crews/quotas", json={"quotas": {"1": 2}}).status_code == 403
    ours = running.keys.known[OURS]
    running.keys.known[OURS] = ours._replace(scopes=ours.scopes | {"admin"})
    assert twice(client, "PUT", "/api/crews/quotas", quotas={"1": 2})["quotas"][1]["quota"] == 2
    for wrong in ({"1": 0}, {"9": 1}, {"one": 1}, {}):
        assert client.put("/api/crews/quotas", json={"quotas": wrong}).status_code == 422


# --- schedules


def test_a_schedule_is_added_paused_resumed_run_and_deleted(client: httpx.Client) -> None:
    made = twice(client, "POST", "/api/schedules", name="report", kind="report", cron="0 9 * * mon", tz="Europe/Berlin")
    assert (made["cron"], made["tz"], made["declared_by"]) == ("0 9 * * mon", "Europe/Berlin", "key:k1")
    taken = client.post("/api/schedules", json={"name": "report", "kind": "report", "every": 60})
    assert (taken.status_code, taken.json()["type"]) == (409, "urn:keptwork:problem:schedule-there")
    assert len(client.get("/api/schedules/report").json()["upcoming"]) == 5
    assert twice(client, "POST", "/api/schedules/report/pause") == {"name": "report", "paused": True, "changed": True}
    assert client.post("/api/schedules/report/pause").json()["changed"] is False
    assert twice(client, "POST", "/api/schedules/report/resume")["changed"] is True
    job = twice(client, "POST", "/api/schedules/report/run-now")["job"]
    assert client.get(f"/api/jobs/{job}").json()["kind"] == "report"
    assert len(client.get("/api/jobs").json()["jobs"]) == 1
    assert twice(client, "DELETE", "/api/schedules/report")["deleted"] is True
    assert client.delete("/api/schedules/report").status_code == 404
    assert client.get("/api/schedules").json() == {"schedules": [], "next": None}


def test_a_schedule_whose_name_has_a_slash_is_found_paused_run_and_deleted(client: httpx.Client) -> None:
    client.post("/api/schedules", json={"name": "reports/daily", "kind": "report", "every": "1h"})
    for at in ("/api/schedules/reports/daily", "/api/schedules/reports%2Fdaily"):
        assert client.get(at).json()["name"] == "reports/daily"
        assert client.post(f"{at}/pause").json()["paused"] is True
        assert client.post(f"{at}/resume").json()["paused"] is False
        assert client.post(f"{at}/run-now").status_code == 201
    assert client.delete(at).json()["deleted"] is True


def test_a_schedule_starts_a_flow_of_a_template(client: httpx.Client, running: Running) -> None:
    client.post("/api/templates", json={"definition": GRAPH})
    asked = {"name": "nightly", "template": "graph", "every": "1h", "queue": beside(running)}
    made = client.post("/api/schedules", json=asked).json()
    assert (made["kind"], made["payload"]["flow"]) == ("keptwork.start", "graph")
    with client.stream("GET", "/api/events/stream", params={"entity": "workstream"}) as stream:
        client.post("/api/schedules/nightly/run-now")
        with worker_beside(running):
            assert any(line.startswith("data: ") for line in stream.iter_lines())
    (flow,) = client.get("/api/workstreams").json()["workstreams"]
    assert flow["name"] == "graph"


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "a"},
        {"kind": "a", "every": "1h", "cron": "* * * * *"},
        {"every": "1h"},
        {"kind": "a", "template": "graph", "every": "1h"},
        {"kind": "a", "cron": "every day"},
        {"kind": "a", "every": "1h", "tz": "Mars/Olympus"},
        {"kind": "a", "every": "1h", "catch_up": "some"},
        {"kind": "a", "every": 0},
    ],
)
def test_what_is_no_schedule_is_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    assert client.post("/api/schedules", json={"name": "s", **body}).status_code == 422
    assert client.get("/api/schedules").json()["schedules"] == []


def test_schedules_come_by_page(client: httpx.Client) -> None:
    for name in ("b", "a", "c"):
        client.post("/api/schedules", json={"name": name, "kind": "k", "every": "1h"})
    first = client.get("/api/schedules", params={"limit": 2}).json()
    rest = client.get("/api/schedules", params={"limit": 2, "after": first["next"]}).json()
    assert [one["name"] for one in [*first["schedules"], *rest["schedules"]]] == ["a", "b", "c"]
