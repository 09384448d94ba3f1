"""Workstreams, their steps and breakers over HTTP: what seed 003 describes, its recovery procedures among it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from keptwork.core.lifecycles import BREAKER, WORKSTREAM, WORKSTREAM_STEP
from tests.http.conftest import OURS, Running
from tests.http.flow_stage import (
    GRAPH,
    HERE,
    beside,
    failed_workstream,
    kept,
    open_breaker,
    step_named,
    worker_beside,
    workstream,
)


def refused(answer: httpx.Response) -> tuple[object, ...]:
    told = answer.json()
    return answer.status_code, told["from"], told["trigger"], set(told["allowed"])


def test_a_workstream_is_started_shown_and_abandoned(client: httpx.Client) -> None:
    made = workstream(client, key="release-1")
    assert (made["state"], made["status"], made["created"]) == ("S_RUNNING", "S_RUNNING", True)
    assert workstream(client, key="release-1")["created"] is False
    whole = client.get(f"/api/workstreams/{made['id']}").json()
    assert [one["name"] for one in whole["steps"]] == ["sign", "after"]
    assert [one["step"] for one in whole["questions"]] == ["sign"]
    assert whole["template"]["version"] == 1
    progress = client.get(f"/api/workstreams/{made['id']}/progress").json()
    assert (progress["total"], progress["done"], progress["running"]) == (2, 0, 1)
    assert [one["name"] for one in progress["now"]] == ["sign"]
    ended = client.post(f"/api/workstreams/{made['id']}/abandon", json={"reason": "not needed"}).json()
    assert (ended["state"], ended["reason"]) == ("S_ABANDONED", "not needed")
    found = client.get("/api/workstreams", params={"state": "S_ABANDONED"}).json()["workstreams"]
    assert [one["id"] for one in found] == [made["id"]]


def test_a_key_that_has_made_a_workstream_is_refused_for_another_one(client: httpx.Client, running: Running) -> None:
    asks: dict[str, Any] = {**GRAPH, "inputs": {"n": {"type": "integer", "default": 1}}}
    made = workstream(client, asks, key="release-2")
    several: list[tuple[str, str, dict[str, Any]]] = [
        ("/api/workstreams", "with other inputs: n", {"definition": asks, "inputs": {"n": 2}}),
        ("/api/workstreams", "by another definition of graph", {"definition": GRAPH}),
        ("/api/workstreams", "by another definition of graph", {"template": kept(running, GRAPH)}),
        ("/api/templates/graph/start", "with other inputs: n", {"inputs": {"n": 2}}),
    ]
    kept(running, asks)
    for at, what, body in several:
        other = client.post(at, json={**body, "key": "release-2"})
        assert (other.status_code, other.json()["type"]) == (422, "urn:keptwork:problem:flow-key-reused"), body
        assert f"'release-2' has made {made['id']} before, {what};" in other.json()["detail"]
    again = client.post("/api/templates/graph/start", json={"key": "release-2"})
    assert (again.json()["id"], again.json()["created"]) == (made["id"], False)


def test_a_failed_step_is_skipped_and_the_workstream_goes_on(client: httpx.Client) -> None:
    """Recovery 2 of the seed, its second way: `run_workstream.py --skip-step s1 WS-001`."""
    id = failed_workstream(client)
    assert client.get(f"/api/workstreams/{id}").json()["state"] == "S_FAILED"
    step = step_named(client, id, "sign")
    key = {"Idempotency-Key": "skip"}
    first, second = (
        client.post(f"/api/steps/{step['id']}/skip", json={"reason": "known"}, headers=key) for _ in range(2)
    )
    assert (first.json()["state"], first.json()["flow_state"]) == ("S_SKIPPED", "S_RUNNING")
    assert first.content == second.content
    assert step_named(client, id, "after")["state"] == "S_RUNNING"


def test_a_failed_step_is_reset_with_all_its_retries(client: httpx.Client) -> None:
    """Recovery 2 of the seed, its first way: retry_count = 0, state = 'S_PENDING'."""
    id = failed_workstream(client)
    step = step_named(client, id, "sign")
    reset = client.post(f"/api/steps/{step['id']}/reset").json()
    assert (reset["state"], reset["retry_count"], reset["flow_state"]) == ("S_RUNNING", 0, "S_RUNNING")
    moves = client.get("/api/events", params={"id": step["id"]}).json()["events"]
    assert [one["to_state"] for one in moves] == ["S_PENDING", "S_RUNNING", "S_FAILED", "S_PENDING", "S_RUNNING"]


def test_a_failed_workstream_is_retried_without_retries_left(client: httpx.Client) -> None:
    id = failed_workstream(client)
    again = client.post(f"/api/workstreams/{id}/retry", json={"reason": "ask once more"}).json()
    assert (again["state"], again["retry_count"]) == ("S_RUNNING", 1)
    assert len(client.get(f"/api/workstreams/{id}").json()["questions"]) == 1
    resumed = client.post(f"/api/workstreams/{id}/resume")  # recovery 1: `run_workstream.py --resume WS-001`
    assert (resumed.status_code, resumed.json()["state"]) == (200, "S_RUNNING")


def test_the_history_of_a_workstream_is_that_of_the_seed(client: httpx.Client) -> None:
    """From `state_transitions` of the seed: from, to and why, in order."""
    id = failed_workstream(client)
    client.post(f"/api/workstreams/{id}/retry", json={"reason": "retry attempt 1"})
    found = client.get(f"/api/workstreams/{id}/events", params={"own": True}).json()["events"]
    assert [(one["from_state"], one["to_state"]) for one in found] == [
        (None, "S_PENDING"),
        ("S_PENDING", "S_RUNNING"),
        ("S_RUNNING", "S_FAILED"),
        ("S_FAILED", "S_RETRYING"),
        ("S_RETRYING", "S_RUNNING"),
    ]
    assert found[3]["reason"] == "retry attempt 1"


ENDED = [("retry", "retry_eligible"), ("resume", "resume"), ("hold", "hold"), ("release", "release")]


@pytest.mark.parametrize(("deed", "trigger"), [*ENDED, ("abandon", "abandon")])
def test_an_ended_workstream_refuses_every_move(client: httpx.Client, deed: str, trigger: str) -> None:
    id = workstream(client)["id"]
    client.post(f"/api/workstreams/{id}/abandon")
    assert refused(client.post(f"/api/workstreams/{id}/{deed}")) == (409, "S_ABANDONED", trigger, set())


def test_a_running_workstream_is_not_retried(client: httpx.Client) -> None:
    id = workstream(client)["id"]
    allowed = set(WORKSTREAM.allowed_from("S_RUNNING"))
    assert refused(client.post(f"/api/workstreams/{id}/retry")) == (409, "S_RUNNING", "retry_eligible", allowed)


@pytest.mark.parametrize(("deed", "name"), [("skip", "sign"), ("reset", "sign"), ("reset", "after")])
def test_a_step_refuses_what_its_lifecycle_does_not_have(client: httpx.Client, deed: str, name: str) -> None:
    step = step_named(client, workstream(client)["id"], name)
    allowed = set(WORKSTREAM_STEP.allowed_from(step["state"]))
    assert refused(client.post(f"/api/steps/{step['id']}/{deed}")) == (409, step["state"], deed, allowed)


def test_to_skip_an_approval_takes_the_right_to_approve(client: httpx.Client, running: Running) -> None:
    id = failed_workstream(client)
    step = step_named(client, id, "sign")
    whole = running.keys.known[OURS]
    running.keys.known[OURS] = whole._replace(scopes=frozenset({"read", "write"}))
    answer = client.post(f"/api/steps/{step['id']}/skip")
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:keptwork:problem:missing-scope")
    assert client.get(f"/api/workstreams/{id}").json()["state"] == "S_FAILED"
    running.keys.known[OURS] = whole
    assert client.post(f"/api/steps/{step['id']}/skip").status_code == 200


def test_to_fork_past_an_approval_takes_the_right_to_approve(client: httpx.Client, running: Running) -> None:
    id = workstream(client)["id"]
    (question,) = client.get(f"/api/workstreams/{id}").json()["questions"]
    client.post(f"/api/approvals/{question['id']}/approve")
    whole = running.keys.known[OURS]
    running.keys.known[OURS] = whole._replace(scopes=frozenset({"read", "write"}))
    assert client.post(f"/api/workstreams/{id}/fork", json={"from_step": "after"}).status_code == 403
    from_start = client.post(f"/api/workstreams/{id}/fork", json={"from_step": "sign"})
    assert (from_start.status_code, len(from_start.json()["questions"])) == (201, 1)
    running.keys.known[OURS] = whole
    made = client.post(f"/api/workstreams/{id}/fork", json={"from_step": "after"}, headers={"Idempotency-Key": "f"})
    again = client.post(f"/api/workstreams/{id}/fork", json={"from_step": "after"}, headers={"Idempotency-Key": "f"})
    assert (made.status_code, made.content) == (201, again.content)
    assert [one["state"] for one in made.json()["steps"]] == ["S_SUCCESS", "S_RUNNING"]
    assert made.json()["forked_from"] == id
    assert set(client.get(f"/api/workstreams/{id}").json()["forks"]) == {made.json()["id"], from_start.json()["id"]}
    assert client.post(f"/api/workstreams/{id}/fork", json={"from_step": "none"}).status_code == 422


def test_a_held_workstream_begins_nothing_until_it_is_released(client: httpx.Client) -> None:
    made = workstream(client, hold=True)
    assert client.get(f"/api/workstreams/{made['id']}").json()["questions"] == []
    assert client.post(f"/api/workstreams/{made['id']}/release").json()["state"] == "S_RUNNING"


def test_a_workstream_with_a_worker_fails_retries_and_succeeds(client: httpx.Client, running: Running) -> None:
    steps: list[dict[str, Any]] = [
        {"id": "build", "call": f"{HERE}:build", "with": {"version": "1"}},
        {"id": "bad", "call": f"{HERE}:fail", "with": {"times": 1}, "depends_on": ["build"]},
        {"id": "ship", "call": f"{HERE}:ship", "with": {"version": "${build.version}"}, "depends_on": ["bad"]},
    ]
    kept(running, {"name": "mended", "steps": steps})
    with worker_beside(running), client.stream("GET", "/api/events/stream", params={"entity": "workstream"}) as stream:
        lines = stream.iter_lines()
        id = client.post("/api/templates/mended/start", json={"queue": beside(running)}).json()["id"]
        reached(lines, "S_FAILED")
        bad = step_named(client, id, "bad")
        assert "it fails, 1" in bad["error"]
        assert client.post(f"/api/steps/{bad['id']}/skip").json()["state"] == "S_SKIPPED"
        reached(lines, "S_SUCCESS")
    ship = step_named(client, id, "ship")
    assert client.get(f"/api/steps/{ship['id']}/output").json()["output"] == {"shipped": "1"}


def reached(lines: Any, state: str) -> None:
    for line in lines:
        if line.startswith("data: ") and f'"to_state": "{state}"' in line:
            return
    raise AssertionError(f"the stream ended before {state}")


def test_a_template_of_a_run_is_not_started_among_workstreams(client: httpx.Client) -> None:
    run = {**GRAPH, "kind": "run", "name": "r", "steps": [{"id": "a", "approval": {}}]}
    assert client.post("/api/templates", json={"definition": run}).status_code == 201
    wrong = client.post("/api/workstreams", json={"template": "r"})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:keptwork:problem:bad-input")
    wrong = client.post("/api/workstreams", json={"definition": run})
    assert wrong.json()["errors"][0]["where"] == "body.definition.kind"
    for neither_or_both in ({}, {"template": "r", "definition": run}):
        assert client.post("/api/runs", json=neither_or_both).status_code == 422


# --- breakers


def test_an_open_breaker_is_looked_at_and_reset(client: httpx.Client, running: Running) -> None:
    """Recovery 3 of the seed: reset_circuit('aider')."""
    open_breaker(running)
    (listed,) = client.get("/api/breakers").json()["breakers"]
    assert (listed["name"], listed["state"], listed["failures"]) == ("tool:aider", "OPEN", 5)
    whole = client.get("/api/breakers/tool:aider").json()
    assert [one["to_state"] for one in whole["events"]] == ["CLOSED", "OPEN"]
    assert client.get("/api/breakers/aider").json()["id"] == whole["id"]  # as the seed calls it
    key = {"Idempotency-Key": "reset"}
    first, second = (
        client.post("/api/breakers/aider/reset", json={"reason": "it is back"}, headers=key) for _ in range(2)
    )
    assert (first.json()["state"], first.json()["let_go"], first.content) == ("CLOSED", 0, second.content)
    allowed = set(BREAKER.allowed_from("CLOSED"))
    again = client.post("/api/breakers/tool:aider/reset", json={"reason": "once more"})
    assert refused(again) == (409, "CLOSED", "reset", allowed)
    assert client.post("/api/breakers/tool:aider/reset").status_code == 422
    assert client.get("/api/breakers/none").json()["detail"] == "There is no such breaker"


def test_breakers_come_by_page_and_their_names_may_have_slashes(client: httpx.Client, running: Running) -> None:
    for name in ("model:a/b", "tool:a", "tool:b"):
        open_breaker(running, name)
    first = client.get("/api/breakers", params={"limit": 2}).json()
    rest = client.get("/api/breakers", params={"limit": 2, "after": first["next"]}).json()
    assert [one["name"] for one in [*first["breakers"], *rest["breakers"]]] == ["model:a/b", "tool:a", "tool:b"]
    assert client.get("/api/breakers/model:a/b").json()["state"] == "OPEN"
    assert client.post("/api/breakers/model:a/b/reset", json={"reason": "back"}).json()["state"] == "CLOSED"
