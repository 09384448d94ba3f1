"""Runs over HTTP: what seed 002 asks of them, at /runs and at /api/runs alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from keptwork.core.lifecycles import RUN, RUN_STEP
from tests.http.conftest import OURS, THEIRS, Running
from tests.http.flow_stage import RELEASE, SIGNED, TWICE, beside, kept, run, worker_beside

BOTH = pytest.mark.parametrize("at", ["/runs", "/api/runs"])


def events(client: httpx.Client, at: str, id: str) -> list[str]:
    return [one["type"] for one in client.get(f"{at}/{id}/events", params={"own": True}).json()["events"]]


@BOTH
def test_the_calls_of_the_seed_do_what_it_says(client: httpx.Client, running: Running, at: str) -> None:
    key = {"Idempotency-Key": "order-17"}
    made = client.post(at, json={"definition": SIGNED}, headers=key)
    assert made.status_code == 201
    again = client.post(at, json={"definition": SIGNED}, headers=key)
    assert again.json()["id"] == made.json()["id"]
    id = made.json()["id"]
    assert made.json()["status"] == "WAITING_APPROVAL"
    assert [one["id"] for one in client.get(at).json()["runs"]] == [id]
    assert client.get(f"{at}/{id}").json()["status"] == "WAITING_APPROVAL"
    with running.client(THEIRS) as other:
        for method, path in [("GET", ""), ("POST", "/approve"), ("POST", "/cancel")]:
            assert other.request(method, f"{at}/{id}{path}").status_code == 404
        assert other.get(at).json()["runs"] == []
    approved = client.post(f"{at}/{id}/approve")
    assert (approved.status_code, approved.json()["status"]) == (200, "SUCCEEDED")
    assert approved.json()["approval"]["decided_by"] == "key:k1"
    other_run = run(client, at=at)["id"]
    assert client.post(f"{at}/{other_run}/cancel", json={"reason": "no need"}).json()["status"] == "CANCELED"
    assert client.post(f"{at}/{id}/cancel").status_code == 409


def test_a_run_goes_from_its_request_over_its_approval_to_its_end_before_the_eyes_of_a_stream(
    client: httpx.Client, running: Running
) -> None:
    kept(running, RELEASE)
    with worker_beside(running):
        asked = {"template": "release", "inputs": {"version": "1.2"}, "queue": beside(running)}
        made = client.post("/runs", json=asked).json()
        with client.stream("GET", "/api/events/stream", params={"correlation_id": made["id"]}) as stream:
            lines = stream.iter_lines()
            if not gated(client, made["id"]):
                seen(lines, "WAITING_APPROVAL")
            (question,) = client.get(f"/runs/{made['id']}").json()["questions"]
            assert question["question"] == "Ship 1.2?"
            assert client.get(f"/runs/{made['id']}/progress").json()["done"] == 1
            assert client.post(f"/runs/{made['id']}/approve").json()["status"] == "RUNNING"
            seen(lines, "SUCCEEDED")
    whole = client.get(f"/runs/{made['id']}").json()
    assert [(one["name"], one["state"]) for one in whole["steps"]] == [
        ("build", "SUCCEEDED"), ("sign", "SUCCEEDED"), ("ship", "SUCCEEDED"),
    ]  # fmt: skip
    shipped = client.get(f"/api/steps/{whole['steps'][2]['id']}/output").json()
    assert shipped["output"] == {"shipped": "1.2"}
    progress = client.get(f"/runs/{made['id']}/progress").json()
    assert (progress["done"], progress["total"], progress["expected_left_seconds"]) == (3, 3, 0)
    types = [one["type"] for one in client.get(f"/runs/{made['id']}/events").json()["events"]]
    assert types.count("run_succeed") == 1
    assert "job_succeeded" in types


def gated(client: httpx.Client, id: str) -> bool:
    return bool(client.get(f"/runs/{id}").json()["state"] == "WAITING_APPROVAL")


def seen(lines: Iterator[str], state: str) -> None:
    """Reads the stream until the run is in that state."""
    for line in lines:
        event = json.loads(line[6:]) if line.startswith("data: ") else {}
        if (event.get("entity"), event.get("to_state")) == ("run", state):
            return
    raise AssertionError(f"the stream ended before the run was {state}")


def test_a_key_makes_one_run_whichever_address_it_is_sent_to(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "once"}
    first = client.post("/runs", json={"definition": SIGNED}, headers=key)
    second = client.post("/api/runs", json={"definition": SIGNED}, headers=key)
    assert (first.content, second.headers["Idempotency-Replayed"]) == (second.content, "true")
    by_field = client.post("/api/runs", json={"definition": SIGNED, "request_id": "once"})
    assert by_field.content == first.content
    assert first.json()["key"] == "once"
    other = client.post("/runs", json={"definition": TWICE}, headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "urn:keptwork:problem:key-reused")
    found = client.post("/runs", json={"definition": SIGNED, "key": "once"}).json()
    assert (found["id"], found["created"]) == (first.json()["id"], False)
    assert len(client.get("/runs").json()["runs"]) == 1


def test_of_sixteen_requests_at_once_under_one_key_there_is_one_run(client: httpx.Client) -> None:
    def send(_: int) -> httpx.Response:
        return client.post("/runs", json={"definition": SIGNED}, headers={"Idempotency-Key": "race"})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(16)))
    assert {one.status_code for one in answers} <= {201, 409}
    assert len({one.json()["id"] for one in answers if one.status_code == 201}) == 1
    assert len(client.get("/runs").json()["runs"]) == 1


def test_of_many_who_approve_reject_and_cancel_at_once_one_wins(client: httpx.Client) -> None:
    id = run(client)["id"]

    def send(number: int) -> tuple[str, httpx.Response]:
        deed = ("approve", "reject", "cancel")[number % 3]
        return deed, client.post(f"/runs/{id}/{deed}")

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(send, range(12)))
    done = {deed for deed, answer in answers if answer.status_code == 200}
    assert len(done) == 1
    assert {answer.status_code for _, answer in answers} == {200, 409}
    ends = {"approve": "run_succeed", "reject": "run_fail", "cancel": "run_cancel"}
    assert [one for one in events(client, "/runs", id) if one in ends.values()] == [ends[done.pop()]]


def test_approving_twice_is_answered_the_same_and_writes_no_second_event(client: httpx.Client) -> None:
    id = run(client)["id"]
    first, second = (client.post(f"/runs/{id}/approve") for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json()["approval"] == first.json()["approval"]
    assert events(client, "/runs", id).count("run_succeed") == 1
    assert client.post(f"/runs/{id}/reject").json()["type"] == "urn:keptwork:problem:already-decided"


def test_a_run_with_several_gates_needs_the_gate_named(client: httpx.Client) -> None:
    id = run(client, TWICE)["id"]
    unnamed = client.post(f"/runs/{id}/approve")
    assert (unnamed.status_code, unnamed.json()["type"]) == (422, "urn:keptwork:problem:bad-input")
    for _ in range(2):  # a repeated answer opens no other gate
        answer = client.post(f"/runs/{id}/approve", json={"gate": "first"})
        assert (answer.status_code, answer.json()["status"]) == (200, "WAITING_APPROVAL")
    assert client.post(f"/runs/{id}/approve", json={"gate": "second"}).json()["status"] == "SUCCEEDED"


def test_what_nobody_asks_cannot_be_approved_and_says_what_could_be(client: httpx.Client) -> None:
    id = run(client, TWICE)["id"]
    refused = client.post(f"/runs/{id}/approve", json={"gate": "second"})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:keptwork:problem:nothing-asked")
    assert (refused.json()["from"], refused.json()["trigger"]) == ("PENDING", "approve")
    assert set(refused.json()["allowed"]) == set(RUN_STEP.allowed_from("PENDING"))


@pytest.mark.parametrize("end", ["approve", "reject", "cancel"])
@pytest.mark.parametrize(("deed", "trigger"), [("cancel", "cancel"), ("hold", "hold"), ("release", "release")])
def test_a_run_that_has_ended_refuses_every_move_with_from_trigger_and_allowed(
    client: httpx.Client, end: str, deed: str, trigger: str
) -> None:
    id = run(client)["id"]
    state = client.post(f"/runs/{id}/{end}").json()["status"]
    refused = client.post(f"/runs/{id}/{deed}")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:keptwork:problem:invalid-transition")
    assert (refused.json()["from"], refused.json()["trigger"], refused.json()["allowed"]) == (state, trigger, [])
    assert RUN.state(state).final


def test_a_held_run_begins_when_it_is_released(client: httpx.Client) -> None:
    made = run(client, hold=True)
    assert (made["status"], made["held_at"] is None) == ("PENDING", False)
    released = client.post(f"/runs/{made['id']}/release").json()
    assert (released["status"], released["held_at"]) == ("WAITING_APPROVAL", None)
    assert client.post(f"/runs/{made['id']}/hold").json()["held_at"] is not None


def test_runs_are_listed_by_page_state_and_name(client: httpx.Client) -> None:
    made = [run(client)["id"] for _ in range(3)]
    other = run(client, TWICE)["id"]
    client.post(f"/runs/{made[0]}/cancel")
    assert [one["id"] for one in client.get("/runs", params={"state": "canceled"}).json()["runs"]] == [made[0]]
    assert [one["id"] for one in client.get("/runs", params={"name": "twice"}).json()["runs"]] == [other]
    first = client.get("/runs", params={"limit": 3}).json()
    rest = client.get("/api/runs", params={"limit": 3, "after": first["next"]}).json()
    assert [one["id"] for one in [*first["runs"], *rest["runs"]]] == [other, *made[::-1]]
    assert rest["next"] is None
    assert client.get("/runs", params={"after": "bm9uZQ"}).json()["type"] == "urn:keptwork:problem:bad-cursor"
    assert client.get("/runs", params={"state": "asleep"}).status_code == 422


def test_the_steps_of_a_run_come_in_order_and_by_page(client: httpx.Client) -> None:
    id = run(client, TWICE)["id"]
    first = client.get(f"/runs/{id}/steps", params={"limit": 1}).json()
    rest = client.get("/api/steps", params={"flow": id, "limit": 1, "after": first["next"]}).json()
    assert [one["name"] for one in [*first["steps"], *rest["steps"]]] == ["first", "second"]
    assert rest["next"] is None


def test_the_end_of_a_run_is_told_to_its_webhook(client: httpx.Client) -> None:
    id = run(client, webhook={"url": "https://hooks.example.com/x?token=t"})["id"]
    assert client.get(f"/runs/{id}/webhooks").json()["webhooks"] == []
    client.post(f"/runs/{id}/cancel")
    (told,) = client.get(f"/runs/{id}/webhooks").json()["webhooks"]
    assert (told["event"], told["url"], told["state"]) == ("run.canceled", "https://hooks.example.com/x?***", "pending")
    assert client.get(f"/api/webhooks/{told['id']}").json()["body"]["flow"]["state"] == "CANCELED"
    key = {"Idempotency-Key": "again"}
    sent = [client.post(f"/api/webhooks/{told['id']}/retry", headers=key).json() for _ in range(2)]
    assert sent == [{"id": told["id"], "was": "pending", "attempts": 0}] * 2
    assert client.get("/api/webhooks", params={"state": "delivered"}).json() == {"webhooks": [], "next": None}
    refused = client.post("/runs", json={"definition": SIGNED, "webhook": {"url": "http://127.0.0.1/"}})
    assert refused.status_code == 422


def test_a_run_belongs_to_the_trace_it_was_asked_for_in(client: httpx.Client) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    made = client.post("/runs", json={"definition": SIGNED}, headers=headers).json()
    assert made["trace_id"] == trace
    assert {one["trace_id"] for one in client.get(f"/runs/{made['id']}/events").json()["events"]} == {trace}


def test_a_run_that_calls_no_model_costs_nothing(client: httpx.Client) -> None:
    id = run(client)["id"]
    assert client.get(f"/runs/{id}/cost").json() == {
        "id": id, "cost_micros": 0, "cost_usd": "0.000000", "lost_calls": 0, "lost_micros": 0, "reserved_micros": 0,
        "steps": [],
    }  # fmt: skip


def test_a_key_for_writing_alone_starts_a_run_and_cannot_approve_it(client: httpx.Client, running: Running) -> None:
    running.keys.known[OURS] = running.keys.known[OURS]._replace(scopes=frozenset({"write"}))
    id = run(client)["id"]
    refused = client.post(f"/runs/{id}/approve")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:keptwork:problem:missing-scope")
